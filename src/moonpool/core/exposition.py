"""Histograms, and the text that Prometheus reads. Plain numbers; no library, no locks."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

SECONDS: Final = (
    *(0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)

Sample = tuple[str, Mapping[str, str], float]
"""Suffix of the name, labels and value."""

Family = tuple[str, str, str, Iterable[Sample]]
"""Name, type, help and samples."""


class Histogram:
    """Counts by upper bound."""

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self.sum += value
        self.count += 1

    def merge(self, counts: Sequence[int], total: float) -> None:
        """Values that were counted elsewhere by the same bounds, `total` together."""
        for i, count in enumerate(counts):
            self._counts[i] += count
        self.count += sum(counts)
        self.sum += total

    def as_dict(self) -> dict[str, object]:
        """The same for JSON: upper bounds, counts up to each (not summed up), `sum`, `count`."""
        return {
            "bounds": list(self._bounds),
            "counts": list(self._counts),
            "sum": self.sum,
            "count": self.count,
        }

    def samples(self) -> Iterator[Sample]:
        total = 0
        for bound, count in zip(self._bounds, self._counts, strict=False):
            total += count
            yield "_bucket", {"le": f"{bound:g}"}, total
        yield "_bucket", {"le": "+Inf"}, self.count
        yield "_sum", {}, self.sum
        yield "_count", {}, self.count


def exposition(families: Iterable[Family]) -> str:
    """The text format."""
    lines = []
    for name, kind, text, samples in families:
        lines.append(f"# HELP {name} {text}")
        lines.append(f"# TYPE {name} {kind}")
        for suffix, labels, value in samples:
            lines.append(f"{name}{suffix}{_labels(labels)} {value:.15g}")
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
