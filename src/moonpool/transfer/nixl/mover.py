"""One life of the agent that moves: what it has registered, whom it knows, what it keeps for lists
that are posted again and again. Its caller has the lock."""

import weakref
from collections import deque
from typing import Any, NamedTuple

from moonpool.core.errors import Refused
from moonpool.transfer.base import U8, U64, Reuse, Transfer
from moonpool.transfer.file_segment import FileSegment
from moonpool.transfer.info_page import NixlInfo
from moonpool.transfer.nixl.agent import Agent
from moonpool.transfer.nixl.pieces import FILE, Far, Piece, cut, rows_of


class Flight(NamedTuple):
    """What NIXL works on: a handle, whether it is kept afterwards, and which piece it carries."""

    handle: Any
    kept: bool
    piece: int


class _Near(NamedTuple):
    array: U8  # pinned by the registration, so it must not be freed before that ends
    registration: Any


class _File(NamedTuple):
    segment: weakref.ReferenceType[FileSegment]
    registration: Any


class _Kept(NamedTuple):
    near: Any
    far: Any
    pieces: list[Piece]
    handles: dict[int, Any]


class Mover:
    """A fresh agent. Once `condemned_s` is set it begins nothing more and waits to be torn down."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.condemned_s: float | None = None
        self._near: dict[int, _Near] = {}
        self._files: dict[int, _File] = {}
        self._met: dict[str, bytes] = {}
        self._kept: dict[int, _Kept] = {}
        self._gone: deque[tuple[bool, int]] = deque()

    def condemn(self, now_s: float) -> None:
        """It has work that will not end, or that failed and may still touch memory."""
        if self.condemned_s is None:
            self.condemned_s = now_s

    def ready(self, transfer: Transfer, info: NixlInfo | None) -> bool:
        """True when nothing slow is left to do before `transfer`. `info` is the peer's; None for a
        file."""
        self.sweep()
        if id(transfer.local) not in self._near:
            return False
        return info is not None and self._met.get(info.agent) == info.metadata

    def make_ready(self, transfer: Transfer, info: NixlInfo | None) -> None:
        """Registers our ends, learns the other. Raises BadInput, TransferError."""
        self.sweep()
        segment, remote = transfer.local, transfer.remote
        if id(segment) not in self._near:
            array = segment.array
            registration = self.agent.register(array.ctypes.data, array.nbytes)
            self._near[id(segment)] = _Near(array, registration)
            weakref.finalize(segment, self._gone.append, (True, id(segment)))
        if isinstance(remote, FileSegment):
            if id(remote) not in self._files:
                registration = self.agent.register(0, remote.nbytes, remote.descriptor, FILE)
                self._files[id(remote)] = _File(weakref.ref(remote), registration)
        elif info is not None and self._met.get(info.agent) != info.metadata:
            self.agent.meet(info.metadata)
            self._met[info.agent] = info.metadata

    def forget(self, agent: str) -> None:
        """A peer's life is over."""
        if self._met.pop(agent, None) is not None:
            self.agent.forget(agent)

    def far(self, transfer: Transfer, info: NixlInfo | None) -> Far:
        """Where the other end is. Raises Refused for what the peer does not offer."""
        remote = transfer.remote
        if isinstance(remote, FileSegment):
            return Far(self.agent.name, 0, remote.descriptor, FILE)
        address, nbytes = info.segments.get(remote.name, (0, 0)) if info is not None else (0, 0)
        if info is None or remote.nbytes > nbytes:
            raise Refused(f"the peer offers no segment '{remote.name}' of that size through NIXL")
        return Far(info.agent, address)

    def pieces(self, transfer: Transfer, info: NixlInfo | None) -> list[Piece]:
        """`transfer` as NIXL is asked for it. Raises as far()."""
        reuse = transfer.reuse
        if reuse is not None and transfer.positions is None and id(reuse) in self._kept:
            return self._kept[id(reuse)].pieces
        return cut(*_rows(transfer, self.far(transfer, info)))

    def flight(self, transfer: Transfer, piece: Piece, index: int, info: NixlInfo | None) -> Flight:
        """A handle for one piece. Raises Refused, Unreachable."""
        reuse = transfer.reuse
        if reuse is None or not piece.blocks or not reuse.whole.lengths.all():
            whose = self.far(transfer, info)
            made = self.agent.once(transfer.kind, piece.near, piece.far, whose)
            return Flight(made, False, index)
        lists = self._lists(reuse, info)
        which = range(piece.first, piece.first + piece.blocks)
        if transfer.positions is not None:
            part = transfer.positions[piece.first : piece.first + piece.blocks]
            made = self.agent.prepared(transfer.kind, lists.near, lists.far, part)
            return Flight(made, False, index)
        handle = lists.handles.get(piece.first)
        if handle is None:
            handle = self.agent.prepared(transfer.kind, lists.near, lists.far, which)
            lists.handles[piece.first] = handle
        return Flight(handle, True, index)

    def land(self, flight: Flight) -> None:
        """NIXL is done with it."""
        if not flight.kept:
            self.agent.release(flight.handle)

    def sweep(self) -> None:
        """Gives back what belonged to segments and prepared transfers that are no more."""
        while self._gone:
            is_segment, number = self._gone.popleft()
            if is_segment:
                self.agent.deregister(self._near.pop(number).registration)
            elif (lists := self._kept.pop(number, None)) is not None:
                for handle in (*lists.handles.values(), lists.near, lists.far):
                    self.agent.release(handle)
        for number, file in list(self._files.items()):
            segment = file.segment()
            if segment is None or segment.closed:
                # Its descriptor's number may be another file's by now.
                del self._files[number]
                self.agent.deregister(file.registration)

    def _lists(self, reuse: Reuse, info: NixlInfo | None) -> _Kept:
        lists = self._kept.get(id(reuse))
        if lists is None:
            whose = self.far(reuse.whole, info)
            near, far = _rows(reuse.whole, whose)
            ours = self.agent.list_of(near)
            theirs = self.agent.list_of(far, whose.agent, whose.kind)
            lists = self._kept[id(reuse)] = _Kept(ours, theirs, cut(near, far), {})
            weakref.finalize(reuse, self._gone.append, (False, id(reuse)))
        return lists


def _rows(transfer: Transfer, far: Far) -> tuple[U64, U64]:
    base, lengths = transfer.local.array.ctypes.data, transfer.lengths
    near = rows_of(base, transfer.local_offsets, lengths)
    return near, rows_of(far.address, transfer.remote_offsets, lengths, far.device)
