"""Gets, puts and views of a whole pool on one host: client, master and node are processes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

import moonpool
from moonpool.bench.processes import expect_stored, pool_of_processes
from moonpool.bench.runner import Row, Settings, make_row, measure
from moonpool.core.errors import Corrupt
from moonpool.core.units import format_bytes
from moonpool.pool.cluster import Cluster

BENCH: Final = "store"
WORKING_SET_BYTES: Final = 256 << 20  # beyond any cache of the CPU


def rows(settings: Settings) -> Iterator[Row]:
    """One row per case."""
    with pool_of_processes(2 << 30) as (cluster, pool):
        bench = _Store(settings, cluster, pool)
        for size in [4 << 10, 64 << 10, 1 << 20] if settings.full else [64 << 10]:
            yield bench.get_into(size)
            yield bench.get(size)
        for verify in (False, True):
            yield bench.view(1 << 20, verify)
        shapes = [(32, 4 << 10), (128, 64 << 10)] + ([(16, 1 << 20)] if settings.full else [])
        for count, size in shapes:
            yield bench.get_many_into(count, size)
        yield bench.get_many(32, 4 << 10)
        yield bench.put_many(32, 4 << 10)
        if settings.full:
            yield bench.put_many(128, 64 << 10)


class _Store:
    def __init__(self, settings: Settings, cluster: Cluster, pool: moonpool.Pool) -> None:
        self._rounds = settings.rounds
        self._pool = pool
        self._pids = [child.pid for child in cluster.children]
        self._sets: dict[int, tuple[list[bytes], NDArray[np.uint8]]] = {}

    def get_into(self, size: int) -> Row:
        keys, values = self._stored(size)
        buffer = bytearray(size)
        turn = itertools.cycle(keys)
        ok = all(
            self._pool.get_into(key, buffer) == size and buffer == value.tobytes()
            for key, value in zip(keys, values, strict=True)
        )
        return self._row(
            f"get_into {format_bytes(size)}, placement cached",
            lambda: self._pool.get_into(next(turn), buffer),
            calls=2000,
            size=size,
            ok=ok,
        )

    def get(self, size: int) -> Row:
        keys, values = self._stored(size)
        turn = itertools.cycle(keys)
        ok = all(
            self._pool.get(key) == value.tobytes() for key, value in zip(keys, values, strict=True)
        )
        return self._row(
            f"get {format_bytes(size)}, placement cached",
            lambda: self._pool.get(next(turn)),
            calls=2000,
            size=size,
            ok=ok,
        )

    def view(self, size: int, verify: bool) -> Row:
        keys, values = self._stored(size)
        turn = itertools.cycle(keys)
        ok = True
        for key, value in zip(keys, values, strict=True):
            window = self._pool.view(key, verify=verify)
            with window as view:
                ok = ok and window.zero_copy and view == value.tobytes()

        def call() -> None:
            with self._pool.view(next(turn), verify=verify):
                pass

        checked = "with CRC" if verify else "generation checked"
        return self._row(
            f"view {format_bytes(size)}, placement cached, {checked}", call, calls=2000, ok=ok
        )

    def get_many_into(self, count: int, size: int) -> Row:
        keys, values = self._stored(size)
        target = np.empty((count, size), np.uint8)
        buffers = [row.data for row in target]
        batches = _batches(keys, count)
        for number, batch in enumerate(batches):
            hits = self._pool.get_many_into(batch, buffers)
            expected = values[number * count : (number + 1) * count]
            if not all(hit.ok for hit in hits) or not np.array_equal(target, expected):
                raise Corrupt(f"get_many_into of {format_bytes(size)} answered other bytes")
        turn = itertools.cycle(batches)
        return self._row(
            f"get_many_into {count} x {format_bytes(size)}",
            lambda: self._pool.get_many_into(next(turn), buffers),
            calls=max(20, (1 << 29) // (count * size) // 8),
            size=count * size,
            items=count,
            ok=True,
        )

    def get_many(self, count: int, size: int) -> Row:
        keys, values = self._stored(size)
        batches = _batches(keys, count)
        answers = self._pool.get_many(batches[0])
        found = [answer.data if isinstance(answer, moonpool.Hit) else None for answer in answers]
        ok = found == [value.tobytes() for value in values[:count]]
        turn = itertools.cycle(batches)
        return self._row(
            f"get_many {count} x {format_bytes(size)}",
            lambda: self._pool.get_many(next(turn)),
            calls=500,
            size=count * size,
            items=count,
            ok=ok,
        )

    def put_many(self, count: int, size: int) -> Row:
        """Fresh keys each call; a round fits, so no eviction is in the figure."""
        values = [os.urandom(size)] * count
        number = itertools.count()

        def call() -> None:
            batch = next(number)
            keys = [b"bench/put/%d/%d/%d" % (size, batch, i) for i in range(count)]
            expect_stored(self._pool.put_many(keys, values))

        row = self._row(
            f"put_many {count} x {format_bytes(size)}",
            call,
            calls=200,
            size=count * size,
            items=count,
        )
        last = b"bench/put/%d/%d/%d" % (size, next(number) - 1, count - 1)
        return row | {"ok": self._pool.get(last) == values[0]}

    def _row(
        self,
        case: str,
        call: Callable[[], object],
        *,
        calls: int,
        size: int = 0,
        items: int = 1,
        ok: bool | None = None,
    ) -> Row:
        figures = measure(
            call,
            self._rounds,
            calls,
            bytes_per_call=size,
            items_per_call=items,
            pids=self._pids,
        )
        row = make_row(BENCH, f"shm {case}", self._rounds, figures)
        return row if ok is None else row | {"ok": ok}

    def _stored(self, size: int) -> tuple[list[bytes], NDArray[np.uint8]]:
        """Random objects of `size` bytes, a working set of them, stored once."""
        if size not in self._sets:
            count = max(128, min(4096, WORKING_SET_BYTES // size))
            values = np.random.default_rng(size).integers(0, 256, (count, size), np.uint8)
            keys = [b"bench/get/%d/%d" % (size, i) for i in range(count)]
            for batch in range(0, count, 128):
                part = slice(batch, batch + 128)
                expect_stored(
                    self._pool.put_many(keys[part], [row.data for row in values[part]], pin="hard")
                )
            self._pool.match_prefix(keys)
            self._sets[size] = (keys, values)
        return self._sets[size]


def _batches(keys: Sequence[bytes], count: int) -> list[list[bytes]]:
    return [list(keys[i : i + count]) for i in range(0, len(keys) - count + 1, count)]
