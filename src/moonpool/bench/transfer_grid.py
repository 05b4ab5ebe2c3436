"""Every transport beside a plain program, cases `<transport>-<read|write>-<count>x<bytes>`.

Each case is measured for `moonpool` and then for `limit`, the least that could do it: one memcpy of
all bytes (local, shm, nixl), a request and its bytes on one socket (tcp), pread or pwrite of one
block after the other (file). The limits check nothing and have no checksum; nor have our file
cases, so that both do the same. Calls walk through more memory than a cache holds.
"""

from __future__ import annotations

import itertools
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moonpool.bench.plain_socket import PlainSocket
from moonpool.bench.runner import Row, Settings, make_row, measure
from moonpool.transfer import Engine, FileSegment, Op, Peer, RemoteSegment, Segment

BENCH: Final = "transfer"
TRANSPORTS: Final = ("local", "shm", "tcp", "file")
NIXL: Final = "nixl"  # only where it is installed
SHAPES: Final = (
    *((1, 4 << 10), (32, 4 << 10)),
    *((1, 64 << 10), (32, 64 << 10)),
    *((1, 1 << 20), (32, 1 << 20)),
)
MORE_SHAPES: Final = ((1, 16 << 20),)
AREA_BYTES: Final = 64 << 20
_ROUND_BYTES: Final = 32 << 20
_CALLS_MAX: Final = 500

_Far = RemoteSegment | Segment | FileSegment


class GridCase(NamedTuple):
    """`blocks` blocks of `nbytes` bytes a call."""

    transport: str
    kind: str
    blocks: int
    nbytes: int

    @property
    def name(self) -> str:
        return f"{self.transport}-{self.kind}-{self.blocks}x{self.nbytes}"

    @property
    def moved(self) -> int:
        return self.blocks * self.nbytes

    @property
    def calls(self) -> int:
        return max(8, min(_CALLS_MAX, _ROUND_BYTES // self.moved))


def cases(full: bool, nixl: bool = False) -> Iterator[GridCase]:
    """All cases of a run."""
    for transport in (*TRANSPORTS, NIXL) if nixl else TRANSPORTS:
        for count, nbytes in SHAPES + (MORE_SHAPES if full else ()):
            for kind in ("read", "write"):
                yield GridCase(transport, kind, count, nbytes)


def rows(settings: Settings, pid: int, engine: Engine, peer: Peer, plain: str) -> Iterator[Row]:
    """Two rows a case. `peer` offers a writable `scratch` of AREA_BYTES, which process `pid` also
    serves over a plain socket; the file lies in the folder for temporary ones."""
    with tempfile.TemporaryDirectory(prefix="moonpool-bench-") as folder:
        grid = _Grid(settings, pid, engine, peer, Path(folder) / "blocks", plain)
        try:
            for case in cases(settings.full, engine.nixl is not None):
                yield grid.ours(case)
                yield grid.limit(case)
        finally:
            grid.close()


class _Grid:
    def __init__(
        self, settings: Settings, pid: int, engine: Engine, peer: Peer, path: Path, plain: str
    ) -> None:
        self._settings = settings
        self._pid = pid
        self._engine = engine
        self._seeds = itertools.count()
        self._near: Segment = engine.allocate(AREA_BYTES)
        self._file = engine.open_file(path, AREA_BYTES, create=True)
        scratch = peer.segment("scratch")
        own: Segment = engine.allocate(AREA_BYTES)
        self._far: dict[str, _Far] = {
            "local": own,
            "shm": scratch,
            "tcp": scratch,
            NIXL: scratch,
            "file": self._file,
        }
        memory = peer.mapping(scratch)
        assert memory is not None, peer.why_no_shm(scratch)
        mapped = np.frombuffer(memoryview(memory), np.uint8)
        self._mapped: dict[str, NDArray[np.uint8]] = {
            "local": own.array,
            "shm": mapped,
            NIXL: mapped,
        }
        self._socket = PlainSocket(plain)

    def close(self) -> None:
        self._socket.close()
        self._file.close()

    def ours(self, case: GridCase) -> Row:
        via, checksum = case.transport, case.transport != "file"
        far = self._far[via]
        near_blocks, far_blocks = self._near.blocks(case.nbytes), far.blocks(case.nbytes)
        submit = self._engine.read if case.kind == "read" else self._engine.write
        block, turn = np.arange(case.blocks), _turns(case)

        def call() -> None:
            ids = block + next(turn) * case.blocks
            _end(submit(near_blocks, ids, far_blocks, ids, checksum=checksum, transport=via))

        figures = self._measured(case, call) | {"checksum": checksum}
        return make_row(BENCH, case.name, self._settings.rounds, figures)

    def limit(self, case: GridCase) -> Row:
        figures = self._measured(case, self._plain(case)) | {"checksum": False}
        return make_row(
            BENCH,
            case.name,
            self._settings.rounds,
            figures,
            subject="limit",
            version=platform.release(),
        )

    def _plain(self, case: GridCase) -> Callable[[], None]:
        near, turn = self._near.buffer, _turns(case)
        size, write, descriptor = case.moved, case.kind == "write", self._file.descriptor
        move = os.pwritev if write else os.preadv

        def over_socket() -> None:
            start = next(turn) * size
            self._socket.move(write, start, near[start : start + size])

        def over_file() -> None:
            start = next(turn) * size
            for at in range(start, start + size, case.nbytes):
                part = near[at : at + case.nbytes]
                moved = move(descriptor, [part], at)
                if moved != case.nbytes:
                    raise OSError(f"{moved} of {case.nbytes} bytes at {at}")

        if case.transport in ("tcp", "file"):
            return over_socket if case.transport == "tcp" else over_file
        dst, src = self._mapped[case.transport], self._near.array
        if not write:
            dst, src = src, dst

        def copy() -> None:
            start = next(turn) * size
            dst[start : start + size] = src[start : start + size]

        return copy

    def _measured(self, case: GridCase, call: Callable[[], None]) -> Row:
        pids = [self._pid] if case.transport in ("shm", "tcp", NIXL) else []
        figures = measure(
            call,
            self._settings.rounds,
            case.calls,
            bytes_per_call=case.moved,
            items_per_call=case.blocks,
            pids=pids,
        )
        return figures | {"ok": self._verified(case, call)}

    def _verified(self, case: GridCase, call: Callable[[], None]) -> bool:
        """Fresh bytes at the source, calls over the whole area, then every byte compared at the
        destination; the far side is filled and read by one op of the engine."""
        near, far = self._near, self._far[case.transport]
        fresh = np.random.default_rng(next(self._seeds)).integers(
            0, 256, AREA_BYTES, dtype=np.uint8
        )
        near.array[:] = fresh
        if case.kind == "read":
            _end(self._engine.write(near, _whole(), far, _whole(), deadline=60))
            near.array[:] = 0
        for _ in range(AREA_BYTES // case.moved):
            call()
        if case.kind == "write":
            near.array[:] = 0
            _end(self._engine.read(near, _whole(), far, _whole(), deadline=60))
        return np.array_equal(near.array, fresh)


def _turns(case: GridCase) -> Iterator[int]:
    """Which part of the area each call takes."""
    return itertools.cycle(range(AREA_BYTES // case.moved))


def _whole() -> tuple[int, int]:
    return 0, AREA_BYTES


def _end(op: Op) -> None:
    op.wait()
    op.check()
