"""Mooncake Store over TCP on loopback: gets and puts as in `moonpool bench store`.

The objects are a working set of 256 MiB, read in turn into one registered buffer, as ours are.
"""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Final

from bench.peers.memory import Memory, block
from bench.peers.mooncake_cluster import Cluster, cluster, expect, leave, mooncake_version
from bench.peers.rounds import Case, Rival, Title, main

MEMORY_BYTES: Final = 2 << 30
WORKING_SET_BYTES: Final = 256 << 20
OBJECTS_MAX: Final = 4096
BATCH: Final = 128


@contextlib.contextmanager
def started() -> Iterator[Rival]:
    """Everything up, the working sets stored and read back once, byte by byte."""
    with cluster(MEMORY_BYTES) as parts:
        bench = _Store(parts)
        cases = [
            bench.get_into(64 << 10),
            bench.get_into(64 << 10, hot=True),
            bench.batch_get_into(128, 64 << 10),
            bench.get_batch(32, 4 << 10),
            bench.put_batch(32, 4 << 10),
        ]
        yield Rival(cases, [parts.master.pid, parts.lender.pid])


class _Store:
    def __init__(self, parts: Cluster) -> None:
        self._store = parts.store
        self._buffer = Memory(BATCH * (64 << 10))
        status = self._store.register_buffer(self._buffer.address, self._buffer.nbytes)
        expect(status == 0, f"register_buffer answered {status}")
        self._keys: dict[int, list[str]] = {}
        self._puts = itertools.count()

    def get_into(self, size: int, *, hot: bool = False) -> Case:
        """`hot` reads one and the same object again and again."""
        keys = self._stored(size)[: 1 if hot else None]
        turn = itertools.cycle(range(len(keys)))
        last = [0]

        def call() -> None:
            last[0] = next(turn)
            got = self._store.get_into(keys[last[0]], self._buffer.address, size)
            expect(got == size, f"get_into answered {got}")

        name = f"get_into {size >> 10} KiB" + (", the same object" if hot else "")
        return Case(name, call, lambda: self._buffer.holds(0, block(last[0], size)), size)

    def batch_get_into(self, count: int, size: int) -> Case:
        keys = self._stored(size)
        starts = itertools.cycle(range(0, len(keys) - count + 1, count))
        targets = [self._buffer.address + i * size for i in range(count)]
        last = [0]

        def call() -> None:
            last[0] = next(starts)
            part = keys[last[0] : last[0] + count]
            got = self._store.batch_get_into(part, targets, [size] * count)
            expect(got == [size] * count, f"batch_get_into answered {got}")

        def arrived() -> bool:
            return all(self._buffer.holds(i * size, block(last[0] + i, size)) for i in range(count))

        name = f"batch_get_into {count} x {size >> 10} KiB"
        return Case(name, call, arrived, count * size, count)

    def get_batch(self, count: int, size: int) -> Case:
        keys = self._stored(size)
        starts = itertools.cycle(range(0, len(keys) - count + 1, count))
        last: list[tuple[int, list[bytes]]] = []

        def call() -> None:
            start = next(starts)
            last[:] = [(start, self._store.get_batch(keys[start : start + count]))]

        def arrived() -> bool:
            start, got = last[0]
            return got == [block(start + i, size) for i in range(count)]

        return Case(f"get_batch {count} x {size >> 10} KiB", call, arrived, count * size, count)

    def put_batch(self, count: int, size: int) -> Case:
        """Fresh keys each call; there is room for all of them."""
        values = [block(i, size) for i in range(count)]
        last: list[list[str]] = []

        def call() -> None:
            number = next(self._puts)
            keys = [f"bench/put/{size}/{number}/{i}" for i in range(count)]
            status = self._store.put_batch(keys, values)
            expect(status == 0, f"put_batch answered {status}")
            last[:] = [keys]

        def arrived() -> bool:
            return bool(self._store.get_batch(last[0]) == values)

        return Case(f"put_batch {count} x {size >> 10} KiB", call, arrived, count * size, count)

    def _stored(self, size: int) -> list[str]:
        """Keys of the working set of objects of `size` bytes, object i holding block i."""
        if size not in self._keys:
            count = min(OBJECTS_MAX, WORKING_SET_BYTES // size)
            keys = [f"bench/get/{size}/{i}" for i in range(count)]
            for start in range(0, count, BATCH):
                part = keys[start : start + BATCH]
                values = [block(start + i, size) for i in range(BATCH)]
                status = self._store.put_batch(part, values)
                expect(status == 0, f"put_batch answered {status}")
                expect(self._store.get_batch(part) == values, "other bytes than were put")
            self._keys[size] = keys
        return self._keys[size]


if __name__ == "__main__":
    main(Title("store", "mooncake", mooncake_version()), started)
    leave()
