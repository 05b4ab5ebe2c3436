"""What the server counts, as Prometheus reads it. It counts, and can never raise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from moonpool.core.exposition import Family, Histogram, exposition
from moonpool.engine.request import Reuse

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """What the server counts; gauges of the engine are joined when the page is made."""

    def __init__(self) -> None:
        self._requests: dict[str, int] = dict.fromkeys(
            ("stop", "length", "aborted", "refused", "overloaded", "error"), 0
        )
        self._prompt = {"computed": 0, **dict.fromkeys(("local", "pool", "peer"), 0)}
        self._generated = 0
        self._first = Histogram(SECONDS)
        self._each = Histogram(SECONDS)

    def ended(self, how: str) -> None:
        """A request is over: one of the words above."""
        self._requests[how] = self._requests.get(how, 0) + 1

    def first_token(self, seconds: float, prompt_tokens: int, reuse: Reuse) -> None:
        self._first.add(seconds)
        self._prompt["computed"] += prompt_tokens - reuse.tokens
        self._prompt["local"] += reuse.local_tokens
        self._prompt["pool"] += reuse.pool_tokens
        self._prompt["peer"] += reuse.peer_tokens

    def generated(self, tokens: int, seconds: float | None) -> None:
        """`seconds` since this request's step before; None for its first."""
        self._generated += tokens
        if seconds is not None and tokens:
            self._each.add(seconds / tokens)

    def page(self, figures: Mapping[str, float]) -> str:
        """The page; `figures` of the engine, by name, become gauges."""
        return exposition(self._families(figures))

    def _families(self, figures: Mapping[str, float]) -> Iterator[Family]:
        yield _counter("requests_total", "Requests by how they ended.", "outcome", self._requests)
        text = "Tokens of prompts by where their keys and values came from."
        yield _counter("prompt_tokens_total", text, "source", self._prompt)
        yield _family("generation_tokens_total", "counter", "Tokens of answers.", self._generated)
        for name, text, histogram in (
            ("time_to_first_token_seconds", "Time to the first token.", self._first),
            ("time_per_output_token_seconds", "Time of each later token.", self._each),
        ):
            yield f"moonpool_engine_{name}", "histogram", text, histogram.samples()
        for name, value in sorted(figures.items()):
            yield _family(name, "gauge", "Of the engine, now.", value)


def _family(name: str, kind: str, text: str, value: float) -> Family:
    return f"moonpool_engine_{name}", kind, text, [("", {}, value)]


def _counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> Family:
    samples = [("", {label: key}, float(count)) for key, count in counts.items()]
    return f"moonpool_engine_{name}", "counter", text, samples
