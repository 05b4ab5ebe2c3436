"""What a first step gains from a second thread, and requests from each other, for the sparse
bench.

The full fetch always gets the same threads. Either keys come beside the step: the full fetch brings
a layer's rows and keys while the layer before is gathered from local memory, as on-demand brings a
layer's keys while the layer before is gathered from the pool. Or each gather and copy is split
between both threads.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import numpy as np

from moonpool.bench.runner import Row
from moonpool.bench.sparse_parts import U8, U32, is_stamped
from moonpool.sparse import SparseReader, gather_union
from moonpool.sparse.indexers import DsaIndexer, DsaQuery

LAYERS: Final = 4
HEADS: Final = 16
UNION: Final = 4
UNION_LAYERS: Final = 8
THREADS: Final = 2
AHEAD: Final = 2
"""Layers asked for before they are used, on both sides (as `load_index(ahead=True)`)."""


class Places(NamedTuple):
    """Memory touched before: keys and all rows of every layer, gathered rows of one."""

    keys: U8
    private: U8
    rows: U8


def first_steps_beside(
    reader: SparseReader,
    here: SparseReader,
    places: Places,
    wanted: Callable[[], list[U32]],
    rounds: int,
) -> Row:
    """On-demand over full fetch, both with the keys fetched by a second thread. `here` reads
    `places.private`. Times are from the start to the last gathered layer; rows are compared in a
    lap of their own, and the last layer's after each lap."""
    layers = range(reader.layout.layers)

    def on_demand(positions: list[U32], look: bool = False) -> bool:
        ok = True
        for layer, _ in reader.load_index(layers, places.keys, ahead=True):
            ok = _gather(reader, layer, positions[layer], places.rows, look) and ok
        return ok

    def whole(positions: list[U32], look: bool = False) -> bool:
        def bring(layer: int) -> int:
            reader.read_layer(layer, places.private[layer])
            for _ in reader.load_index([layer], places.keys[layer : layer + 1]):
                pass
            return layer

        ok = True
        with ThreadPoolExecutor(1) as thread:
            coming = deque(thread.submit(bring, layer) for layer in layers[:AHEAD])
            for layer in layers:
                coming.popleft().result()
                if layer + AHEAD < len(layers):
                    coming.append(thread.submit(bring, layer + AHEAD))
                ok = _gather(here, layer, positions[layer], places.rows, look) and ok
        return ok

    ok = True
    laps: tuple[list[float], list[float]] = ([], [])
    for way, times in zip((on_demand, whole), laps, strict=True):
        places.keys[:] = 255
        ok = way(wanted(), True) and ok
        ok = all((keys == n % 251).all() for n, keys in enumerate(places.keys)) and ok
        for _ in range(rounds):
            positions = wanted()
            begin = time.perf_counter()
            way(positions)
            times.append(time.perf_counter() - begin)
            last = layers[-1]
            got = places.rows[: len(positions[last])]
            ok = ok and is_stamped(reader.layout, last, positions[last], got)
    step, full = (statistics.median(times) for times in laps)
    ceiling = 1 + reader.layout.entry_bytes / reader.layout.index_bytes
    return {
        "first_step_ratio": full / step,
        "ceiling": ceiling,
        "full_s": full,
        "step_s": step,
        "step_p99_s": float(np.percentile(laps[0], 99)),
        "ok": ok,
    }


def first_steps_shared(
    reader: SparseReader,
    here: SparseReader,
    places: Places,
    wanted: Callable[[], list[U32]],
    rounds: int,
) -> Row:
    """On-demand over full fetch, each with every gather and copy split between THREADS threads:
    whole rows, keys and gathers one after the other. `here` reads `places.private`."""
    layout, ok = reader.layout, True
    laps: dict[str, list[float]] = {name: [] for name in ("full", "keys", "step", "own")}
    reader.use_threads(THREADS)
    here.use_threads(THREADS)
    try:
        for _ in range(rounds):
            begin = time.perf_counter()
            for layer in range(layout.layers):
                reader.read_layer(layer, places.private[layer])
            laps["full"].append(time.perf_counter() - begin)
            places.keys[:] = 255
            begin = time.perf_counter()
            for _ in reader.load_index(out=places.keys):
                pass
            laps["keys"].append(time.perf_counter() - begin)
            ok = all((keys == n % 251).all() for n, keys in enumerate(places.keys)) and ok
            seconds = {"step": 0.0, "own": 0.0}
            for layer, positions in enumerate(wanted()):
                out = places.rows[: len(positions)]
                for name, source in (("step", reader), ("own", here)):
                    out[:] = 0
                    begin = time.perf_counter()
                    source.gather(layer, positions, out)
                    seconds[name] += time.perf_counter() - begin
                    ok = ok and is_stamped(layout, layer, positions, out)
            for name, total in seconds.items():
                laps[name].append(total)
    finally:
        reader.use_threads(1)
        here.use_threads(1)
    full, keys_s, step, own = (statistics.median(times) for times in laps.values())
    return {
        "threads": THREADS,
        "first_step_ratio": (full + own) / step,
        "first_step_ratio_fetched": (full + keys_s + own) / (step + keys_s),
        "full_s": full,
        "keys_s": keys_s,
        "step_s": step,
        "private_step_s": own,
        "ok": ok,
    }


def keys_ahead(reader: SparseReader, keys: U8) -> Row:
    """Keys of the next layers brought while this one is scored, and one after the other. The
    scores are those of the lightning indexer, with HEADS heads."""
    indexer = DsaIndexer()
    heads = np.random.default_rng(11).normal(size=(HEADS, 128)).astype(np.float32)
    query = DsaQuery(heads, np.ones(HEADS, np.float32))
    layers = range(min(LAYERS, reader.layout.layers))
    out = keys[: len(layers)]

    def lap(ahead: bool) -> float:
        begin = time.perf_counter()
        for _, layer_keys in reader.load_index(layers, out, ahead=ahead):
            indexer.scores(query, layer_keys, reader.length)
        return time.perf_counter() - begin

    out[:] = 255
    lap(False)
    laps = [(lap(False), lap(True)) for _ in range(3)]
    after, beside = (statistics.median(lap) for lap in zip(*laps, strict=True))
    ok = all((out[layer] == layer % 251).all() for layer in layers)
    return {
        "one_after_other_s": after,
        "ahead_s": beside,
        "ahead_gain": after / beside,
        "ok": ok,
    }


def gathers_together(
    reader: SparseReader, room: U8, random: np.random.Generator, rounds: int
) -> Row:
    """UNION requests that share the prefix, each choosing half of the same 2k tokens: apart, and as
    one gather of the rows any of them wants. `room` is memory for k rows."""
    top_k, tokens = len(room), reader.length
    layers = range(min(UNION_LAYERS, reader.layout.layers))
    laps: tuple[list[float], ...] = ([], [], [], [])
    ok = True
    for _ in range(rounds):
        common = random.choice(tokens, min(2 * top_k, tokens), False)
        wanted = [random.permutation(common)[:top_k] for _ in range(UNION)]
        marks = [time.perf_counter()]
        for layer in layers:
            for positions in wanted:
                reader.gather(layer, positions, room)
        marks.append(time.perf_counter())
        unions = [gather_union(reader, layer, wanted) for layer in layers]
        marks.append(time.perf_counter())
        gather_union(reader, 0, wanted[:1])
        marks.append(time.perf_counter())
        reader.gather(0, wanted[0], room)
        marks.append(time.perf_counter())
        for times, begin, end in zip(laps, marks, marks[1:], strict=False):
            times.append(end - begin)
        for layer, union in enumerate(unions):
            pairs = zip(wanted, union.at, strict=True)
            ok = ok and all(
                is_stamped(reader.layout, layer, positions, union.rows[at])
                for positions, at in pairs
            )
    apart, together, lone, plain = (statistics.median(times) for times in laps)
    return {
        "requests": UNION,
        "apart_s": apart,
        "union_s": together,
        "union_gain": apart / together,
        "rows_ratio": unions[0].asked / unions[0].moved,
        # What the union costs a request that is alone.
        "batch1_step_ratio": lone / plain,
        "ok": ok,
    }


def _gather(reader: SparseReader, layer: int, positions: U32, rows: U8, look: bool) -> bool:
    out = rows[: len(positions)]
    if look:
        out[:] = 0
    reader.gather(layer, positions, out)
    return not look or is_stamped(reader.layout, layer, positions, out)
