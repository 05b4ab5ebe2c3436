"""The transfer engine between two processes of one host: the grid of transfer_grid.py, then reads
over TCP and shared memory, and views.

The owner of the memory runs in a process of its own, `python -m moonpool.bench.transfer FOLDER`,
started here; its CPU time counts. Reads walk through more memory than a cache holds; the blocks of
a batch lie in reverse, so that none adjoins the next.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moonpool.bench import transfer_grid
from moonpool.bench.plain_socket import PlainServer
from moonpool.bench.runner import Row, Settings, make_row, measure
from moonpool.core.errors import Corrupt
from moonpool.core.units import format_bytes
from moonpool.pool.cluster import local_directory
from moonpool.transfer import Engine, Op, Peer, Segment
from moonpool.transfer.nixl import installed

BENCH: Final = "transfer"
REGION_BYTES: Final = 256 << 20
LOCAL_BYTES: Final = 16 << 20
_STAMP: Final = np.uint64(0x9E3779B97F4A7C15)  # odd: word k holds k times it, no two are equal
_CALLS_BYTES: Final = 256 << 20  # moved by one round of a case, at most
_CALLS_MAX: Final = 3000


class Case(NamedTuple):
    """`blocks` blocks of `block_bytes` a call. With `depth` reads in flight a call takes the oldest
    back and submits the next."""

    transport: str
    blocks: int
    block_bytes: int
    checksum: bool = True
    depth: int = 1

    @property
    def nbytes(self) -> int:
        return self.blocks * self.block_bytes

    @property
    def calls(self) -> int:
        return max(16, min(_CALLS_MAX, _CALLS_BYTES // self.nbytes))

    @property
    def name(self) -> str:
        count = f"{self.blocks} x " if self.blocks > 1 else ""
        without = "" if self.checksum else ", no CRC"
        ahead = f", {self.depth} in flight" if self.depth > 1 else ""
        return f"{self.transport} read {count}{format_bytes(self.block_bytes)}{without}{ahead}"


CASES: Final = (
    Case("tcp", 1, 4 << 10),
    Case("tcp", 32, 4 << 10),
    Case("tcp", 32, 4 << 10, depth=4),
    Case("tcp", 1, 1 << 20),
    Case("tcp", 1, 1 << 20, checksum=False),
    Case("tcp", 1, 16 << 20),
    Case("tcp", 1, 16 << 20, checksum=False),
    Case("shm", 1, 64 << 10),
    Case("shm", 1, 1 << 20),
)
MORE_CASES: Final = (
    Case("tcp", 1, 64 << 10),
    Case("tcp", 32, 64 << 10),
    Case("shm", 1, 4 << 10),
    Case("shm", 32, 4 << 10),
    Case("shm", 1, 16 << 20),
)
MAPPED: Final = (64 << 10, 1 << 20)


def rows(settings: Settings) -> Iterator[Row]:
    """One row per case."""
    with _owner() as (pid, engine, peer, plain):
        yield from transfer_grid.rows(settings, pid, engine, peer, plain)
        bench = _Transfer(settings, pid, engine, peer)
        for case in CASES + (MORE_CASES if settings.full else ()):
            yield bench.read(case)
        for size in MAPPED:
            yield bench.map(size)


class Read(NamedTuple):
    """A read under way, from blocks `there` to blocks `here`."""

    op: Op
    here: NDArray[np.int64]
    there: NDArray[np.int64]


class _Transfer:
    def __init__(self, settings: Settings, pid: int, engine: Engine, peer: Peer) -> None:
        self._settings = settings
        self._pid = pid
        self._engine = engine
        self._remote = peer.segment("memory")
        self._peer = peer
        self._local: Segment = engine.allocate(LOCAL_BYTES)

    def read(self, case: Case) -> Row:
        near, far = (end.blocks(case.block_bytes) for end in (self._local, self._remote))
        reverse = np.arange(case.blocks)[::-1]
        turn = itertools.cycle(range(0, far.count, case.blocks))
        places = itertools.cycle(
            [np.arange(case.blocks) + i * case.blocks for i in range(case.depth)]
        )
        in_flight: deque[Read] = deque()

        def take() -> Read:
            read = in_flight.popleft()
            read.op.wait()
            read.op.check()
            return read

        def call() -> None:
            here, there = next(places), reverse + next(turn)
            op = self._engine.read(
                near, here, far, there, checksum=case.checksum, transport=case.transport
            )
            in_flight.append(Read(op, here, there))
            if len(in_flight) == case.depth:
                take()

        figures = self._measure(call, case.calls, case.nbytes, case.blocks)
        while in_flight:
            take()
        self._local.array[:] = 0
        for _ in range(case.depth - 1):
            call()
        here, there = next(places), reverse + next(turn)
        in_flight.append(Read(self._engine.read(near, here, far, there), here, there))
        ok = all(self._arrived(take(), case.block_bytes) for _ in range(case.depth))
        return self._row(case.name, figures, ok)

    def _arrived(self, read: Read, block_bytes: int) -> bool:
        seen = self._local.array.reshape(-1, block_bytes)[read.here]
        pairs = zip(seen, read.there.tolist(), strict=True)
        return all(_is_stamped(block, number * block_bytes) for block, number in pairs)

    def map(self, size: int) -> Row:
        def call() -> None:
            self._peer.map(self._remote, (0, size)).release()

        # No byte moves, so bytes per second would mean nothing.
        figures = self._measure(call, _CALLS_MAX, 0, 1)
        with self._peer.map(self._remote, (0, size)) as view:
            if view.copied:
                raise Corrupt("the peer's memory was copied, not mapped; nothing was measured")
            ok = _is_stamped(np.frombuffer(view.data, np.uint8), 0)
        return self._row(f"shm map {format_bytes(size)}", figures, ok)

    def _measure(self, call: Callable[[], None], calls: int, nbytes: int, items: int) -> Row:
        return measure(
            call,
            self._settings.rounds,
            calls,
            bytes_per_call=nbytes,
            items_per_call=items,
            pids=[self._pid],
        )

    def _row(self, name: str, figures: Row, ok: bool) -> Row:
        return make_row(BENCH, name, self._settings.rounds, {**figures, "ok": ok})


@contextlib.contextmanager
def _owner() -> Iterator[tuple[int, Engine, Peer, str]]:
    """The owner's pid, an engine here, the owner as its peer, and where its plain socket is."""
    with local_directory("bench") as directory:
        command = [sys.executable, "-m", "moonpool.bench.transfer", str(directory)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                address, plain = process.stdout.readline().split()
                with Engine(dir=str(directory), nixl=installed()) as engine:
                    yield process.pid, engine, engine.connect(address, timeout=10), plain
            finally:
                process.kill()


def serve(folder: str) -> None:
    """The owner: stamped memory until the input ends; prints its address."""
    with Engine(dir=folder, nixl=installed()) as engine:
        memory = engine.allocate(REGION_BYTES, "memory", writable=False)
        words = memory.array.view(np.uint64)
        words[:] = np.arange(len(words), dtype=np.uint64)
        words *= _STAMP
        scratch = engine.allocate(transfer_grid.AREA_BYTES, "scratch")
        print(engine.listen(), PlainServer(scratch.buffer).address, flush=True)
        sys.stdin.read()


def _is_stamped(block: NDArray[np.uint8], offset: int) -> bool:
    """Whether `block` is what the owner's memory holds at `offset`."""
    words = block.view(np.uint64)
    first = offset // 8
    return bool((words == np.arange(first, first + len(words), dtype=np.uint64) * _STAMP).all())


if __name__ == "__main__":
    serve(sys.argv[1])
