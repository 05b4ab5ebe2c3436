"""Reading rows on demand against fetching a prefix whole: real bytes, one run, every row checked.

A prefix lies in a node's memory. `shm` readers hold views, `tcp` ones let the node pack rows. The
full fetch is the same reader's `read_layer` into memory that was touched before; beside it stands
what the machine can do at all, one memcpy of as many bytes (shm) or a plain program over one TCP
connection. A first step gathers top_k rows of each layer, layer after layer as their indices would
be known, into one layer's memory as attention would use it up: on demand out of the pool, after a
full fetch out of the memory that it fetched to. No attention or indexer is computed: these are
times of moving rows.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from moonpool.bench import sparse_decoder
from moonpool.bench.runner import Row, Settings, make_row
from moonpool.bench.sparse_beside import (
    THREADS,
    UNION,
    Places,
    first_steps_beside,
    first_steps_shared,
    gathers_together,
    keys_ahead,
)
from moonpool.bench.sparse_costs import costs
from moonpool.bench.sparse_limits import Memcpy, PlainProgram
from moonpool.bench.sparse_parts import (
    KEY,
    U8,
    U32,
    Laps,
    Spare,
    Trace,
    is_stamped,
    layers_that_fit,
    segment_file,
    stored_prefix,
)
from moonpool.bench.sparse_readers import gather_side_by_side
from moonpool.bench.sparse_traces import RecordedSteps, hint_figures, recorded_steps
from moonpool.pool.cluster import Cluster
from moonpool.pool.pool import Pool
from moonpool.sparse import (
    BF16_ROW_BYTES,
    FP8_ROW_BYTES,
    INDEX_KEY_BYTES,
    HotBuffer,
    PrefixStore,
    SparseLayout,
    SparseReader,
    local_bytes,
    local_source,
)

BENCH: Final = "sparse"
LAYERS: Final = 61
TOP_K: Final = 2048
SIZES: Final = (131072, 65536, 16384)
BUFFERS: Final = (1, 2, 3, 4)  # in units of k
STEPS: Final = 12
READERS: Final = (1, 2, 4)
_STEPS_A_ROUND: Final = 5  # first steps; one full fetch takes far longer

Gather = Callable[[int, U32, U8], Any]
"""Rows of a layer at these positions, into this memory."""


def rows(settings: Settings) -> Iterator[Row]:
    """One row per case."""
    sizes = (settings.tokens,) if settings.tokens else SIZES
    for tokens in sizes:
        for row_bytes in (FP8_ROW_BYTES, BF16_ROW_BYTES):
            wanted = settings.layers or LAYERS
            layers = layers_that_fit(row_bytes, INDEX_KEY_BYTES, tokens, wanted)
            layout = SparseLayout(layers, row_bytes)
            with stored_prefix(layout, tokens) as (cluster, folder, near, far):
                bench = _Sparse(settings, layout, tokens, cluster, folder, near, far)
                yield from bench.rows()
    yield from sparse_decoder.rows(settings)


class _Sparse:
    def __init__(
        self,
        settings: Settings,
        layout: SparseLayout,
        tokens: int,
        cluster: Cluster,
        folder: Path,
        near: Pool,
        far: Pool,
    ) -> None:
        self._rounds = settings.rounds
        self._full_matrix = settings.full
        self._layout = layout
        self._tokens = tokens
        self._cluster = cluster
        self._segment = segment_file(folder)
        self._pools = {"shm": near, "tcp": far}
        self._top_k = min(TOP_K, tokens // 8)
        # Touched before any clock runs.
        self._private: U8 = np.ones((layout.layers, tokens, layout.entry_bytes), np.uint8)
        self._keys: U8 = np.ones(
            (layout.layers, layout.pages(tokens), layout.index_page_bytes), np.uint8
        )
        self._rows: U8 = np.ones((layout.layers, self._top_k, layout.entry_bytes), np.uint8)
        # Four layers: no cache holds them.
        self._spare = Spare(max(4 * self._private[0].nbytes, self._rows.nbytes))
        self._random = np.random.default_rng(7)

    def rows(self) -> Iterator[Row]:
        for transport in ("shm", "tcp"):
            with contextlib.ExitStack() as open_now:
                store = PrefixStore(self._pools[transport], self._layout)
                reader = open_now.enter_context(store.reader(KEY, transport))
                limit: Memcpy | PlainProgram = Memcpy(self._segment)
                if transport == "tcp":
                    limit = open_now.enter_context(PlainProgram(self._segment))
                first = list(self._first_steps(transport, reader, limit))
                if transport == "shm":  # after every page of the mapping was touched
                    yield self._costs(reader)
                yield from first
                yield from self._two_threads(transport, reader)
                for times in BUFFERS if self._full_matrix or self._tokens == SIZES[0] else (2,):
                    published = Trace(self._layout.layers, self._tokens, self._top_k)
                    beside = limit if isinstance(limit, PlainProgram) else None
                    yield self._steady(transport, reader, beside, times, published)
                    for name, recorded in self._recorded().items():
                        yield self._steady(transport, reader, beside, times, recorded, name)
                for name, recorded in self._recorded().items():
                    figures = hint_figures(reader, recorded, self._keys, self._rounds)
                    yield self._row(f"{transport}-hint-{name}", figures)
                figures = gathers_together(reader, self._rows[0], self._random, self._rounds)
                yield self._row(f"{transport}-union-{UNION}", figures)
                if transport == "tcp":
                    yield self._row("tcp-keys-ahead", keys_ahead(reader, self._keys))
        if self._full_matrix or self._tokens == SIZES[0]:
            for count in READERS:
                yield self._readers(count)

    def _first_steps(
        self, transport: str, reader: SparseReader, limit: Memcpy | PlainProgram
    ) -> Iterator[Row]:
        """Everything whole, then some first steps, in turns: the machine's speed changes meanwhile.
        What arrives is checked outside the clock."""
        laps = Laps()
        ok = True
        # A short prefix is fetched in the time of a tick of somebody else's: more often, then.
        often = max(2, min(8, SIZES[0] // self._tokens))
        self._read_keys(reader)  # touched before any clock runs
        self._read_whole(reader)
        ways: dict[str, Gather] = {"step": reader.gather, "private_step": self._here().gather}
        beside: PlainProgram | None = None
        if isinstance(limit, PlainProgram):
            beside = limit
            ways["plain_step"] = lambda _layer, _wanted, out: beside.read(out, again=True)
        for _ in range(self._rounds * often):
            if beside is None:
                laps.time("limit", lambda: limit.read(self._private))
                laps.time("keys", lambda: self._read_keys(reader))
                laps.time("full", lambda: self._read_whole(reader))
            else:
                self._everything_beside(laps, reader, beside)
            if not all((keys == n % 251).all() for n, keys in enumerate(self._keys)):
                raise AssertionError("the index keys are others")
            if not self._whole_is_right():  # private memory holds rows again
                raise AssertionError("the full fetch brought other rows")
            for _ in range(max(1, _STEPS_A_ROUND // often)):
                wanted = self._wanted()
                ok = self._steps(laps, ways, wanted) and ok
                laps.time("step_one_call", lambda w=wanted: self._one_call(reader, w))  # type: ignore[misc]
                ok = self._rows_are_right(wanted) and ok
                if beside is not None:
                    laps.time("plain_one_call", lambda: beside.read(self._rows, again=True))
                    self._rows[:] = 0
        yield from self._first_rows(transport, laps, ok)

    def _first_rows(self, transport: str, laps: Laps, ok: bool) -> Iterator[Row]:
        names = ("full", "keys", "step", "private_step")
        full, keys, step, own = (laps.median(name) for name in names)
        times = ["full", "limit", "step", "step_one_call", "private_step"]
        if transport == "tcp":
            times += ["plain_step", "plain_one_call"]
        shared: Row = {
            "full_bytes": self._private.nbytes,
            "step_bytes": self._rows.nbytes,
            "limit": "memcpy" if transport == "shm" else "plain TCP",
            "full_of_limit": laps.median("limit") / full,
            "step_p99_s": laps.percentile("step", 99),
            # What on-demand costs a lone request at every later step, without a hot buffer.
            "batch1_step_ratio": step / own,
            **laps.figures(*times),
            "ok": ok,
        }
        yield self._row(
            f"{transport}-resident",
            {
                "first_step_ratio": (full + own) / step,
                "moved_ratio": full / step,
                "first_step_ratio_one_call": (full + own) / laps.median("step_one_call"),
                **shared,
            },
        )
        yield self._row(
            f"{transport}-fetched",
            {
                "first_step_ratio": (full + keys + own) / (step + keys),
                "moved_ratio": (full + keys) / (step + keys),
                "ceiling": 1 + self._layout.entry_bytes / self._layout.index_bytes,
                "keys_bytes": self._keys.nbytes,
                **laps.figures("keys", *(["plain_keys"] if transport == "tcp" else [])),
                **shared,
            },
        )

    def _two_threads(self, transport: str, reader: SparseReader) -> Iterator[Row]:
        here = self._here()
        places = Places(self._keys, self._private, self._rows[0])
        figures = first_steps_beside(reader, here, places, self._wanted, self._rounds)
        yield self._row(f"{transport}-pipelined", figures)
        if transport == "shm":
            figures = first_steps_shared(reader, here, places, self._wanted, self._rounds)
            yield self._row(f"{transport}-threads-{THREADS}", figures)

    def _costs(self, near: SparseReader) -> Row:
        return self._row("machine-costs", costs(near, self._here(), self._pools["tcp"]))

    def _here(self) -> SparseReader:
        """Of the same rows in private memory."""
        return SparseReader(local_source(self._layout, self._private))

    def _recorded(self) -> dict[str, RecordedSteps]:
        return recorded_steps(self._layout.layers, self._tokens, self._top_k)

    def _steady(
        self,
        transport: str,
        reader: SparseReader,
        beside: PlainProgram | None,
        times: int,
        trace: Trace | RecordedSteps,
        name: str = "",
    ) -> Row:
        """Steps with a buffer of times * k rows, beside the same rows from private memory and, over
        TCP, beside the plain program with as many bytes as were fetched."""
        layers, top_k = self._layout.layers, trace.top_k
        rows = min(times * top_k, self._tokens)
        hot = HotBuffer(self._layout, rows)
        ways: dict[str, Gather] = {"private_step": self._here().gather}
        hot.prefetch(reader, trace.recent(rows))
        start = hot.counters
        numbers, counts = np.arange(layers), np.full(layers, top_k)
        laps, ok = Laps(), True
        for _ in range(STEPS):
            wanted = trace.step()
            column = np.concatenate(wanted)
            before = hot.counters.fetched
            begin = time.perf_counter()
            found = hot.resolve_layers(reader, numbers, counts, column)
            laps.add("step", time.perf_counter() - begin)
            for layer in range(layers):
                slots = found.slots[layer * top_k : (layer + 1) * top_k]
                got = hot.rows[layer][slots]
                ok = ok and is_stamped(self._layout, layer, wanted[layer], got)
            ok = self._steps(laps, ways, wanted) and ok
            if beside is not None:
                nbytes = (hot.counters.fetched - before) * self._layout.entry_bytes
                room = self._spare.take(nbytes)
                laps.time("plain", lambda r=room: beside.read(r, again=True))  # type: ignore[misc]
        asked = hot.counters.rows - start.rows
        fetched = hot.counters.fetched - start.fetched
        formula = local_bytes(self._layout, rows, self._tokens)
        held = hot.rows.nbytes + self._keys.nbytes
        return self._row(
            f"{transport}-steady-{rows}" if not name else f"{transport}-recorded-{rows}-{name}",
            {
                "trace": name or "published",
                "top_k": top_k,
                "buffer_rows": rows,
                **laps.figures("step", "private_step", *(["plain"] if beside else [])),
                "step_p99_s": laps.percentile("step", 99),
                "steady_ratio": laps.median("step") / laps.median("private_step"),
                "miss_ratio": fetched / asked,
                "pool_bytes_a_step": fetched * self._layout.entry_bytes / STEPS,
                "local_bytes": held,
                "local_bytes_formula": formula,
                "whole_bytes": self._tokens * self._layout.token_bytes,
                "ok": ok and held == formula,
            },
        )

    def _readers(self, count: int) -> Row:
        """So many processes gather at the same time, each its own rows."""
        figures = gather_side_by_side(self._cluster.address, self._layout, self._top_k, count)
        return self._row(f"shm-readers-{count}", figures)

    # --- what is timed ----------------------------------------------------------------------------

    def _read_whole(self, reader: SparseReader) -> None:
        for layer in range(self._layout.layers):
            reader.read_layer(layer, self._private[layer])

    def _read_keys(self, reader: SparseReader) -> None:
        for _ in reader.load_index(out=self._keys):
            pass

    def _everything_beside(self, laps: Laps, reader: SparseReader, beside: PlainProgram) -> None:
        """Keys and rows of all layers, each layer beside the plain program with as many bytes: a
        TCP connection's pace changes within a second."""
        with laps.sums() as sums:
            for layer in range(self._layout.layers):
                keys = self._keys[layer : layer + 1]
                room = self._spare.take(keys.nbytes)
                sums.time("plain_keys", lambda r=room: beside.read(r))  # type: ignore[misc]
                sums.time("keys", lambda n=layer, k=keys: deque(reader.load_index([n], k), 0))  # type: ignore[misc]
            for layer in range(self._layout.layers):
                rows = self._private[layer]
                room = self._spare.take(rows.nbytes)
                sums.time("limit", lambda r=room: beside.read(r))  # type: ignore[misc]
                sums.time("full", lambda n=layer, r=rows: reader.read_layer(n, r))  # type: ignore[misc]

    def _steps(self, laps: Laps, ways: Mapping[str, Gather], wanted: list[U32]) -> bool:
        """Gathers layer after layer into one layer's memory, as attention would use it up in
        between, each of the ways in its turn; rows are compared there, outside the clock. The plain
        program brings none."""
        ok = True
        with laps.sums() as sums:
            for layer, positions in enumerate(wanted):
                out = self._rows[0, : len(positions)]
                for name, gather in ways.items():
                    out[:] = 0
                    sums.time(name, lambda g=gather, n=layer, p=positions, o=out: g(n, p, o))  # type: ignore[misc]
                    if name != "plain_step":
                        ok = is_stamped(self._layout, layer, positions, out) and ok
        return ok

    def _one_call(self, reader: SparseReader, wanted: list[U32]) -> None:
        numbers, counts = np.arange(len(wanted)), np.full(len(wanted), self._top_k)
        reader.gather_layers(numbers, counts, np.concatenate(wanted), self._rows)

    # --- checks -----------------------------------------------------------------------------------

    def _wanted(self) -> list[U32]:
        """Scattered and unsorted: the worst case."""
        return [
            self._random.choice(self._tokens, self._top_k, replace=False).astype(np.uint32)
            for _ in range(self._layout.layers)
        ]

    def _rows_are_right(self, wanted: list[U32]) -> bool:
        pairs = enumerate(zip(wanted, self._rows, strict=True))
        right = [is_stamped(self._layout, layer, *pair) for layer, pair in pairs]
        self._rows[:] = 0
        return all(right)

    def _whole_is_right(self) -> bool:
        """Every row's two ends, and some rows whole."""
        some = self._random.choice(self._tokens, 512, replace=False)
        names = np.arange(self._tokens, dtype=np.uint64) << np.uint64(16)
        for layer in range(self._layout.layers):
            rows = self._private[layer]
            name = (names | np.uint64(layer))[:, None].view(np.uint8)
            ends = np.array_equal(rows[:, :8], name) and np.array_equal(rows[:, -8:], name)
            if not ends or not is_stamped(self._layout, layer, some, rows[some]):
                return False
        return True

    def _row(self, case: str, figures: Row) -> Row:
        name = f"{self._tokens}-{self._layout.entry_bytes}-{case}"
        facts = {"layers": self._layout.layers, "top_k": self._top_k}
        return make_row(BENCH, name, self._rounds, {**facts, **figures})
