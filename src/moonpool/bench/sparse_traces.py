"""Recorded choices of a real indexer, laid over a larger prefix: what steady steps ask for.

A traced position stands for as many rows as make its k the bench's; they are spread over the whole
prefix by a permutation of each layer's own, which is the worst case for memory. What comes back,
and after how long, is as it was recorded.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from moonpool.bench.runner import Row
from moonpool.bench.sparse_parts import U8, U32, is_stamped
from moonpool.sparse import Hint, HotBuffer, SparseLayout, SparseReader
from moonpool.sparse.traces import TopKTrace, packaged_trace

TRACES: Final = ("recall", "smollm2-quest", "smollm2-oracle")
WARM_STEPS: Final = 16
"""Before the measured ones; also how far apart layers that share a traced layer begin."""


class RecordedSteps:
    """`step()` and `recent()` as of sparse_parts.Trace. `top_k` may come out smaller than asked."""

    def __init__(self, trace: TopKTrace, layers: int, tokens: int, top_k: int) -> None:
        self._trace = trace
        self._scale = min(top_k // trace.top_k, tokens // trace.tokens)
        self.top_k = self._scale * trace.top_k
        self._at = WARM_STEPS
        self._places = [
            np.random.default_rng(layer).permutation(tokens)[: self._scale * trace.tokens]
            for layer in range(layers)
        ]

    @property
    def fits(self) -> bool:
        """False: the prefix, or k, is smaller than what was traced."""
        return self._scale >= 1

    def step(self) -> list[U32]:
        """Each layer's next choice."""
        self._at += 1
        return [self._rows(layer, self._at - 1) for layer in range(len(self._places))]

    def recent(self, rows: int) -> list[U32]:
        """What an LRU buffer of `rows` rows holds before the first step, oldest first."""
        return [
            _newest([self._rows(layer, at) for at in range(self._at)], rows)
            for layer in range(len(self._places))
        ]

    def first(self) -> list[U32]:
        """Each layer's choice in the answer's first step."""
        chosen, layers = self._trace.chosen[0], range(len(self._places))
        return [self._spread(layer, chosen[layer % len(chosen)]) for layer in layers]

    def hint(self, rows: int) -> list[U32]:
        """The first `rows` rows of what the prompt's last query would have chosen, by layer."""
        kept = self._trace.hint[:, : rows // self._scale]
        return [self._spread(layer, kept[layer % len(kept)]) for layer in range(len(self._places))]

    def _rows(self, layer: int, at: int) -> U32:
        trace = self._trace
        round_, traced = divmod(layer, trace.layers)
        return self._spread(layer, trace.chosen[(at + round_ * WARM_STEPS) % trace.steps, traced])

    def _spread(self, layer: int, chosen: U32) -> U32:
        inside = np.arange(self._scale, dtype=np.uint32)
        spread = chosen[:, None] * np.uint32(self._scale) + inside
        rows: U32 = self._places[layer][spread.reshape(-1)].astype(np.uint32)
        return rows


def recorded_steps(layers: int, tokens: int, top_k: int) -> dict[str, RecordedSteps]:
    """From the beginning of each packaged trace that fits, by its name."""
    made = {n: RecordedSteps(packaged_trace(n), layers, tokens, top_k) for n in TRACES}
    return {name: steps for name, steps in made.items() if steps.fits}


def hint_figures(reader: SparseReader, recorded: RecordedSteps, keys: U8, rounds: int) -> Row:
    """A first step with its index keys, `keys` u8[layers, pages, page bytes] being their place:
    rows layer after layer as choices become known, into an empty buffer of 2k rows; and with a
    hint that a second thread fetches into it beside the keys. Gains are of the whole of it. The
    buffer's memory is touched before any clock runs."""
    layout = reader.layout
    wanted, rows = recorded.first(), 2 * recorded.top_k
    hint = recorded.hint(rows)
    laps: dict[str, list[float]] = {name: [] for name in ("keys", "cold", "fill", "both", "after")}
    missed, ok = 0, True
    for _ in range(rounds):
        hot = _touched(layout, rows)
        laps["keys"].append(_timed(lambda: _load(reader, keys)))
        laps["cold"].append(_timed(lambda h=hot: _first_step(h, reader, wanted)))  # type: ignore[misc]
        hot = _touched(layout, rows)
        laps["fill"].append(_timed(lambda h=hot: h.prefetch(reader, hint)))  # type: ignore[misc]
        hot = _touched(layout, rows)
        laps["both"].append(_timed(lambda h=hot: _load_beside(h, reader, keys, hint)))  # type: ignore[misc]
        before = hot.counters.misses
        laps["after"].append(_timed(lambda h=hot: _first_step(h, reader, wanted)))  # type: ignore[misc]
        missed = hot.counters.misses - before
        for layer, positions in enumerate(wanted):
            found = hot.resolve(reader, layer, positions)
            got = hot.rows[layer][found.slots]
            ok = ok and is_stamped(layout, layer, positions, got)
    keys_s, cold, fill, both, after = (statistics.median(laps[name]) for name in laps)
    return {
        "top_k": recorded.top_k,
        "hint_gain": (keys_s + cold) / (both + after),
        "hint_gain_in_line": (keys_s + cold) / (keys_s + fill + after),
        "hint_gain_keys_resident": cold / (fill + after),
        "keys_s": keys_s,
        "cold_step_s": cold,
        "hint_s": fill,
        "keys_and_hint_s": both,
        "hinted_step_s": after,
        "hint_recall": 1 - missed / sum(map(len, wanted)),
        "ok": ok,
    }


def _touched(layout: SparseLayout, rows: int) -> HotBuffer:
    hot = HotBuffer(layout, rows)
    hot.rows[:] = 0
    return hot


def _load(reader: SparseReader, keys: U8) -> None:
    for _ in reader.load_index(out=keys):
        pass


def _load_beside(hot: HotBuffer, reader: SparseReader, keys: U8, hint: Hint) -> None:
    with ThreadPoolExecutor(1) as thread:
        filling = thread.submit(hot.prefetch, reader, hint)
        _load(reader, keys)
        filling.result()


def _first_step(hot: HotBuffer, reader: SparseReader, wanted: list[U32]) -> None:
    for layer, positions in enumerate(wanted):
        hot.resolve(reader, layer, positions)


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _newest(steps: Sequence[U32], rows: int) -> U32:
    """Distinct positions by their last use, the last `rows` of them."""
    column = np.concatenate(steps)[::-1]
    _, first = np.unique(column, return_index=True)
    return column[np.sort(first)[:rows]][::-1].astype(np.uint32)
