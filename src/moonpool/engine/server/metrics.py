"""Counters and histograms as Prometheus reads them. They count, and can never raise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from moonpool.engine.request import Reuse

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """Cumulative buckets with fixed bounds in seconds."""

    def __init__(self) -> None:
        self._counts = [0] * len(SECONDS)
        self._count = 0
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._count += 1
        self._sum += seconds
        for index, bound in enumerate(SECONDS):
            self._counts[index] += seconds <= bound

    def lines(self, name: str) -> Iterator[str]:
        yield f"# TYPE {name} histogram"
        for bound, count in zip(SECONDS, self._counts, strict=True):
            yield f'{name}_bucket{{le="{bound:g}"}} {count}'
        yield f'{name}_bucket{{le="+Inf"}} {self._count}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {self._count}"


class Metrics:
    """What the server counts; gauges of the engine are joined when the page is made."""

    def __init__(self) -> None:
        self._requests: dict[str, int] = dict.fromkeys(
            ("stop", "length", "aborted", "refused", "overloaded", "error"), 0
        )
        self._prompt = {"computed": 0, **dict.fromkeys(("local", "pool", "peer"), 0)}
        self._generated = 0
        self._first = Histogram()
        self._each = Histogram()

    def ended(self, how: str) -> None:
        """A request is over: one of the words above."""
        self._requests[how] = self._requests.get(how, 0) + 1

    def first_token(self, seconds: float, prompt_tokens: int, reuse: Reuse) -> None:
        self._first.observe(seconds)
        self._prompt["computed"] += prompt_tokens - reuse.tokens
        self._prompt["local"] += reuse.local_tokens
        self._prompt["pool"] += reuse.pool_tokens
        self._prompt["peer"] += reuse.peer_tokens

    def generated(self, tokens: int, seconds: float | None) -> None:
        """`seconds` since this request's step before; None for its first."""
        self._generated += tokens
        if seconds is not None and tokens:
            self._each.observe(seconds / tokens)

    def page(self, figures: Mapping[str, float]) -> str:
        """The page; `figures` of the engine, by name, become gauges."""
        return "\n".join(self._lines(figures)) + "\n"

    def _lines(self, figures: Mapping[str, float]) -> Iterator[str]:
        yield from _family("moonpool_engine_requests_total", "outcome", self._requests)
        yield from _family("moonpool_engine_prompt_tokens_total", "source", self._prompt)
        yield "# TYPE moonpool_engine_generation_tokens_total counter"
        yield f"moonpool_engine_generation_tokens_total {self._generated}"
        yield from self._first.lines("moonpool_engine_time_to_first_token_seconds")
        yield from self._each.lines("moonpool_engine_time_per_output_token_seconds")
        for name, value in sorted(figures.items()):
            yield f"# TYPE moonpool_engine_{name} gauge"
            yield f"moonpool_engine_{name} {value:g}"


def _family(name: str, label: str, counts: Mapping[str, int]) -> Iterator[str]:
    yield f"# TYPE {name} counter"
    for key, count in counts.items():
        yield f'{name}{{{label}="{key}"}} {count}'
