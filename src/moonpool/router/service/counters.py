"""What the router counts, and its page for Prometheus. Plain numbers; no library, no locks."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

_SECONDS: Final = (
    *(0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
_SHARES: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

Sample = tuple[str, Mapping[str, str], float]
"""Suffix of the name, labels and value."""


class Histogram:
    """Counts by upper bound."""

    def __init__(self, bounds: tuple[float, ...] = _SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self.sum += value
        self.count += 1

    def samples(self) -> Iterator[Sample]:
        total = 0
        for bound, count in zip(self._bounds, self._counts, strict=False):
            total += count
            yield "_bucket", {"le": f"{bound:g}"}, total
        yield "_bucket", {"le": "+Inf"}, self.count
        yield "_sum", {}, self.sum
        yield "_count", {}, self.count


class Counters:
    """One router's figures since its start."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        """By worker and by how it ended: ok, error, client_gone, cut, timeout."""
        self.refusals: Counter[str] = Counter()
        """Requests never sent to a worker, by status."""
        self.retries: Counter[str] = Counter()
        """Attempts made again, by why."""
        self.prefill_failures = 0
        self.hits_checked = 0
        """Requests whose worker told its hit tokens."""
        self.hits_predicted_tokens = 0
        self.hits_actual_tokens = 0
        self.hits_error_tokens = 0
        """Sum of |predicted - actual|: errors do not cancel out in it."""
        self.decision_s = Histogram()
        self.first_token_s = Histogram()
        self.hit_share = Histogram(_SHARES)


def exposition(families: Iterable[tuple[str, str, str, Iterable[Sample]]]) -> str:
    """The text format: (name, type, help, samples) of each family."""
    lines = []
    for name, kind, text, samples in families:
        lines.append(f"# HELP {name} {text}")
        lines.append(f"# TYPE {name} {kind}")
        for suffix, labels, value in samples:
            lines.append(f"{name}{suffix}{_labels(labels)} {value:.10g}")
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
