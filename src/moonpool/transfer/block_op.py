"""The usual transfer over TCP, whole blocks of one layout to another, begun in one native step: ids
are checked, turned into offsets and sent without an array in between. What is not as usual goes
the long way of request.py, which finds the fault where there is one.

A read of 128 KiB leaves the caches cold, so that each line here costs several times what it does in
a loop of its own: that is why some steps of Op are written out once more.
"""

import math
import time
from typing import TYPE_CHECKING, Literal

import numpy as np

from moonpool import _core
from moonpool.transfer.base import OpResult, OpState, Transfer
from moonpool.transfer.layout import Layout
from moonpool.transfer.native_errors import NATIVE_ERRORS
from moonpool.transfer.op import STATES, Tally
from moonpool.transfer.request import checked_deadline
from moonpool.transfer.segment import RemoteSegment, Segment
from moonpool.transfer.tcp import CompletionPump, TcpGuard, TcpOp

if TYPE_CHECKING:
    from moonpool.transfer.engine import Engine
    from moonpool.transfer.peer import Peer

_POSTED, _DONE = OpState.POSTED, OpState.DONE


class BlockOp(TcpOp):
    """One frame, POSTED from the start, since it is made when the frame has left. Its lists are
    made for who asks for them: the native op has them."""

    __slots__ = ("_far", "_frame", "_kind", "_made", "_near")

    def __init__(
        self,
        kind: str,
        near: Segment,
        far: RemoteSegment,
        frame: _core.Op,
        deadline_s: float,
        nbytes: int,
        checksum: bool,
        connection: _core.Connection,
        pump: CompletionPump,
        tally: Tally,
    ) -> None:
        self.transport = "tcp"
        self._deadline_s = deadline_s
        self._nbytes = nbytes
        self._state = _POSTED
        self._end = self._result = self._callbacks = None
        self._tally = tally
        self.connection = connection
        self._frames = [frame]
        self._pump = pump
        self._guard: TcpGuard = far.peer.rails
        self._heirs = self._inherited = self._cancel_wanted = False
        self._heir = None
        self._checksum = checksum
        self._kind = kind
        self._near = near
        self._far = far
        self._frame = frame
        self._made: Transfer | None = None

    @property
    def transfer(self) -> Transfer:
        made = self._made
        if made is None:
            frame, nbytes = self._frame, self._nbytes
            here, there = frame.local_offsets, frame.remote_offsets
            lengths = np.full(len(here), nbytes // len(here), np.uint64)
            ends = (self._near, here, self._far, there, lengths)
            made = Transfer(self._kind, *ends, nbytes, self._deadline_s, self._checksum)
            self._made = made
        return made

    def wait(self, timeout: float | None = None) -> bool:
        limit_s = self._wait_limit_s() if timeout is None else max(0.0, timeout)
        if not self._frame.wait_well(math.ceil(limit_s * 1000)):
            return super().wait(0.0)
        if self._state is not _DONE:
            self._end_well()
        return True

    def _end_well(self) -> None:
        with STATES:
            if self._state is not _POSTED:
                return
            self._state = _DONE
            assert self._tally is not None
            self._tally.add("tcp", _DONE, self._nbytes)
            callbacks, self._callbacks = self._callbacks, None
        self._near.let_go(self)
        if callbacks:
            self._call(callbacks)

    def _poll(self) -> None:
        frame = self._frame
        if not frame.terminal:
            return
        if frame.ok:
            self._end_well()
        else:
            super()._poll()

    def _made_result(self) -> OpResult:
        if self._state is not _DONE:
            return super()._made_result()
        frame = self._frame
        crc = frame.crcs if self._checksum else None
        return OpResult(_DONE, self._nbytes, np.zeros(frame.count, np.uint8), crc, "tcp", None)


def _plain_way(peer: "Peer", far: RemoteSegment, via: str | None) -> _core.Connection | None:
    """The connection over which an op on `far` goes as it is; None where that takes thought."""
    if peer.closed or peer.hung or peer.rails.many or far.epoch != peer.epoch:
        return None
    if via != "tcp" and (via is not None or peer.offers(far)[0] != "tcp"):
        return None
    connection = peer.data_connection
    return connection if connection is not None and connection.alive else None


def begin_blocks(
    engine: "Engine",
    tally: Tally,
    kind: Literal["read", "write"],
    local: object,
    local_ids: object,
    remote: object,
    remote_ids: object,
    deadline: float | None,
    checksum: bool | None,
    via: str | None,
) -> BlockOp | None:
    """None: not the usual case, and nothing was sent."""
    if type(local) is not Layout or type(remote) is not Layout:
        return None
    if not isinstance(local_ids, np.ndarray) or not isinstance(remote_ids, np.ndarray):
        return None
    near, far = local.segment, remote.segment
    if type(near) is not Segment or type(far) is not RemoteSegment:
        return None
    if near.closed or near.flush is not None or local.planes != 1 or remote.planes != 1:
        return None
    peer = far.peer
    connection = _plain_way(peer, far, via)
    if connection is None:
        return None
    if kind == "read":
        submit = connection.read_blocks
    elif far.writable and not peer.rails.fences.unanswered:
        submit = connection.write_blocks
    else:
        return None
    config = engine.config
    limit_s = config.deadline_ms / 1000 if deadline is None else checked_deadline(deadline)
    sums = config.checksum if checksum is None else checksum
    until_s = time.monotonic() + limit_s
    limit_ms = math.ceil(limit_s * 1000)
    there, here = (far.epoch, far.region, remote.grid, remote_ids), (local.grid, local_ids)
    try:
        frame = submit(*there, *here, near.buffer, limit_ms, sums)
    except (*NATIVE_ERRORS, BufferError):
        return None
    if frame is None:
        return None
    nbytes = frame.count * local.block_bytes
    op = BlockOp(kind, near, far, frame, until_s, nbytes, sums, connection, engine.pump, tally)
    near.hold(op)
    return op
