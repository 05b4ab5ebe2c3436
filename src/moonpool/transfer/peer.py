"""A peer as the engine knows it: its segments, ways to reach it, and coming back after a loss."""

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moonpool import _core
from moonpool.core.errors import (
    BadInput,
    Closed,
    DeadlineExceeded,
    MoonpoolError,
    PeerRestarted,
    TooManyOps,
    TransferError,
    did_you_mean,
)
from moonpool.transfer.base import OpState, Transfer
from moonpool.transfer.info_page import NixlInfo
from moonpool.transfer.keeper import Heartbeat
from moonpool.transfer.layout import Layout, resolve
from moonpool.transfer.link import Link
from moonpool.transfer.nixl.reach import is_near, why_not
from moonpool.transfer.peer_rails import PeerRails, path_to, planned
from moonpool.transfer.relay import RelayedOp
from moonpool.transfer.segment import RemoteSegment, Segment
from moonpool.transfer.view import View

if TYPE_CHECKING:
    from moonpool.transfer.engine import Engine


class Peer:
    """Made by `engine.connect`. Thread-safe.

    A lost connection is made again by the next op (which waits for it as QUEUED) or by refresh().
    When another process answers then, `epoch` changes and old descriptors fail with PeerRestarted.
    One with a `name` is looked up again in the directory first: it may answer at another address.
    """

    def __init__(
        self,
        engine: "Engine",
        address: str,
        link: Link,
        addresses: Sequence[str] | None = None,
        name: str = "",
    ) -> None:
        self.address = address
        self.name = name
        self.closed = False
        self._addresses = addresses
        self._engine = engine
        self._lock = threading.Lock()
        self._waiting: list[tuple[RelayedOp, str | None]] = []
        self._reviver: threading.Thread | None = None
        self.link = link
        self._segments: dict[str, RemoteSegment] = {}
        self._own: dict[int, Segment] = {}
        # Why it is held to hang, '' when it is not.
        self.hung = ""
        self.hearts: list[Heartbeat] = []
        self.silent: frozenset[str] = frozenset()
        self.rails = self._rails_over(link)
        self._install(link)

    @property
    def epoch(self) -> int:
        """Random number of the process that answered last."""
        return self.link.epoch

    @property
    def alive(self) -> bool:
        """False once all connections are known to be lost, or the peer is held to hang."""
        if self.closed or self.hung:
            return False
        return self.link.alive or self.rails.living() is not None

    @property
    def segments(self) -> dict[str, RemoteSegment]:
        """What the peer offered when it was last asked, by name."""
        return dict(self._segments)

    @property
    def transports(self) -> tuple[str, ...]:
        """Transports that can reach some segment of this peer, best first."""
        names = {name for segment in self._segments.values() for name in self.offers(segment)}
        order = ("local", "shm", "nixl", "tcp")
        return tuple(name for name in order if name in names or name == "tcp")

    @property
    def connection(self) -> _core.Connection:
        """For questions to the peer: the first one that lives."""
        connection = self.link.connection
        return connection if connection.alive else self.rails.living() or connection

    @property
    def data_connection(self) -> _core.Connection | None:
        """For the tcp transport: the first that lives, of those that the policy lets carry data."""
        connection = self.link.connection
        if self.rails.primary and connection.alive:
            return connection
        return self.rails.living() or (connection if self.rails.primary else None)

    def mapping(self, segment: RemoteSegment) -> _core.SharedRegion | None:
        """For the shm transport: the peer's memory in our address space."""
        return self.link.mappings.get(segment.region)

    def local_segment(self, segment: RemoteSegment) -> Segment | None:
        """For the local transport: the segment itself, when the peer is this very process."""
        return self._own.get(segment.region) if segment.epoch == self.link.epoch else None

    @property
    def is_here(self) -> bool:
        """The peer is an engine of this very process."""
        return self._engine.lives_here(self.link.epoch)

    def offers(self, segment: RemoteSegment) -> tuple[str, ...]:
        """Transports that can reach `segment` now, best first."""
        names = list[str]()
        if self.local_segment(segment) is not None:
            names.append("local")
        if segment.region in self.link.mappings:
            names.append("shm")
        if not self.hung:
            names.append("tcp")
        if not self.why_no_nixl(segment):
            names.insert(len(names) - is_near(self.link.info), "nixl")
        return tuple(names)

    @property
    def nixl(self) -> NixlInfo | None:
        """How to reach it through NIXL; None when that is off at either end."""
        info = self.link.info
        return info.nixl if info is not None and self._engine.nixl is not None else None

    def why_no_nixl(self, segment: RemoteSegment) -> str:
        """The reason nixl cannot reach `segment`; '' when it can."""
        return why_not(self._engine.nixl is not None, self.link.info, segment.name, self.hung)

    def why_no_shm(self, segment: RemoteSegment) -> str:
        """The reason shm cannot reach `segment`; '' when it can."""
        if segment.region in self.link.mappings:
            return ""
        return self.link.shm_reason or "the segment is registered memory, not allocated to share"

    def segment(self, name: str) -> RemoteSegment:
        """The current descriptor of a segment; asks the peer when it is not known yet. One that
        hangs is not asked for what is known.

        Raises BadInput when the peer has none of that name, TransferError when it cannot be asked.
        """
        if name not in self._segments or not (self.alive or self.hung):
            self.refresh()
        if name not in self._segments:
            hint = did_you_mean(str(name), self._segments)
            raise BadInput(f"{self.address} offers no segment {name!r}.{hint}")
        return self._segments[name]

    def layout(self, name: str) -> Layout:
        """A layout the peer published: `segment.blocks(..., name=name)`. Raises as segment()."""
        known = self.link.info is not None and name in self.link.info.layouts
        if not known or not (self.alive or self.hung):
            self.refresh()
        layouts = self.link.info.layouts if self.link.info is not None else {}
        if name not in layouts:
            hint = did_you_mean(str(name), layouts)
            raise BadInput(f"{self.address} publishes no layout {name!r}.{hint}")
        shape = layouts[name]
        segment = self.segment(shape.segment)
        assert self.link.info is not None
        planes, plane_stride = self.link.info.planes.get(name, (1, None))
        return segment.blocks(
            shape.block_bytes,
            shape.stride,
            shape.offset,
            name,
            planes=planes,
            plane_stride=plane_stride,
        )

    def refresh(self, timeout: float | None = None) -> None:
        """Asks the peer what it offers now; connects again first if that is needed."""
        self._require_open()
        timeout = self._engine.connect_timeout_s if timeout is None else timeout
        if self.alive:
            with self._lock:  # of one life of the peer, both
                link, connection = self.link, self.connection
            link.refresh(timeout, connection)
            self._install(link, fresh=False)
        else:
            self._install(self._open(timeout))

    def map(self, target: "RemoteSegment | Layout | str", which: Any = None) -> View:
        """A read-only view of one block (an id in a layout), of one (offset, length) of a segment,
        or of all of it; in place on the same host, else a copy. Raises TransferError, BadInput."""
        if isinstance(target, str):
            target = self.segment(target)
        segment = target.segment if isinstance(target, Layout) else target
        if not isinstance(segment, RemoteSegment) or segment.peer is not self:
            raise BadInput(f"{segment!r} does not belong to {self.address}")
        blocks = resolve(target, which)
        if len(blocks.offsets) != 1:
            raise BadInput(f"a view is of one block, not of {len(blocks.offsets)}")
        offset, length = int(blocks.offsets[0]), int(blocks.lengths[0])
        self._require_current(segment)
        own = self.local_segment(segment)
        memory = own.buffer if own is not None else self.mapping(segment)
        if memory is None:
            return self._copied(segment, offset, length)
        data = memoryview(memory)[offset : offset + length].toreadonly()
        return View(data, "local" if own is not None else "shm", copied=False)

    def close(self) -> None:
        """Ends the connection and its ops; descriptors of this peer are of no use afterwards."""
        with self._lock:
            self.closed = True
            waiting, self._waiting = self._waiting, []
        for op, _ in waiting:
            op.settle(OpState.FAILED, error=self._closed_error(), only_from=OpState.QUEUED)
        self.rails.close()
        self._part(self.link)
        self._engine.forget(self)

    def refusal(self, segment: RemoteSegment) -> TransferError | None:
        """Why no op on `segment` can begin, if so."""
        if self.closed:
            return self._closed_error()
        if segment.epoch != self.link.epoch:
            return PeerRestarted(
                f"segment '{segment.name}' belongs to an earlier process at {self.address}; take "
                f"the new descriptor from peer.segment({segment.name!r})"
            )
        return None

    @property
    def addresses(self) -> list[str]:
        """Where it is known to listen; the first is the one we were given."""
        return [path.address for path in self.rails.paths]

    def fall_silent(self, address: str, why: str) -> None:
        """For the keeper: nobody answers there. When none does, the peer hangs: its ops end now,
        and only its shared memory can be used."""
        with self._lock:
            self.silent = self.silent | {address}
            if self.silent.issuperset(self.addresses):
                # Before its ops end, so that who sees one fail knows why the next will, too.
                self.hung = why
        self.rails.cut(address, f"{address} is silent: {why}")
        if address == self.address:
            self.link.connection.close()
        if self.hung:
            self.rails.cut_all(f"{self.address} hangs: {why}")
            self.link.connection.close()

    def speak(self, address: str) -> None:
        """For the keeper: somebody answers there, or it is dead: the next op will see."""
        with self._lock:
            self.silent = self.silent - {address}
            self.hung = ""

    def spare(self) -> list[_core.Connection]:
        """For fences: the heartbeats' connections."""
        connections = [heart.connection for heart in self.hearts]
        return [connection for connection in connections if connection is not None]

    def submit_later(self, transfer: Transfer, via: str | None) -> RelayedOp:
        """An op that waits for one attempt to connect again."""
        op = RelayedOp(transfer)
        with self._lock:
            if len(self._waiting) >= self._engine.queue_ops_max:
                full = (
                    f"{len(self._waiting)} ops wait for {self.address} already: queue_ops_max is "
                    f"{self._engine.queue_ops_max}; wait for some"
                )
                op.settle(OpState.FAILED, error=TooManyOps(full))
                return op
            self._waiting.append((op, via))
            if self._reviver is None:
                self._reviver = threading.Thread(
                    target=self._revive, name="moonpool-reconnect", daemon=True
                )
                self._reviver.start()
        return op

    def _rails_over(self, link: Link) -> PeerRails:
        announced = link.info.addresses if link.info is not None else []
        nics = link.info.nics if link.info is not None else {}
        wanted = announced if self._addresses is None else self._addresses
        paths = [path_to(one, nics.get(one)) for one in planned(self.address, wanted)]
        return PeerRails(self._engine, self._engine.life_name(), link.epoch, paths, self.spare)

    def _revive(self) -> None:
        give_up_s = time.monotonic() + self._engine.connect_timeout_s
        link: Link | None = None
        error: MoonpoolError | None = None
        while link is None and error is None:
            with self._lock:
                due_s = min((op.transfer.deadline_s for op, _ in self._waiting), default=give_up_s)
            left_s = min(give_up_s, due_s) - time.monotonic()
            try:
                link = self._open(max(0.001, left_s))
            except DeadlineExceeded as late:
                error = late if time.monotonic() >= give_up_s else None
                self._expire_waiting()
            except MoonpoolError as why:
                error = why
        if link is not None:
            self._install(link)
        # Only now: an op that still finds the old link dead must not begin a second attempt.
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._reviver = None
        for op, via in waiting:
            self._engine.relay(op, via, error)

    def _open(self, timeout_s: float) -> Link:
        # A name may lead elsewhere than last time.
        if self.name:
            return self._engine.open_named(self.name, timeout_s)
        return self._engine.open_link(self.address, timeout_s)

    def _expire_waiting(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            late = [op for op, _ in self._waiting if op.transfer.deadline_s <= now_s]
            self._waiting = [one for one in self._waiting if one[0].transfer.deadline_s > now_s]
        for op in late:
            op.expire()

    def _install(self, link: Link, fresh: bool = True) -> None:
        """Not `fresh`: it was asked anew, and may have been left meanwhile."""
        with self._lock:
            old = self.link
            late = old is not link and (not fresh or (old.alive and old.epoch == link.epoch))
            if self.closed or late:
                # Too late, or somebody else was first: ops may be running on that one.
                link.close()
                return
            self.link = link
            if old is not link:
                self.hung, self.silent = "", frozenset()  # it answered
            rails = self.rails
            if rails.epoch != link.epoch:
                self.address = link.address
                self.rails = self._rails_over(link)
            self._own = self._engine.shared_with(link.epoch)
            kept = self._segments if old.epoch == link.epoch else {}
            self._segments = {
                name: _kept(kept.get(name), offer.region) or link.segment_of(self, offer)
                for name, offer in link.offers.items()
            }
            current = self.rails
        if old is not link:
            self._part(old)
        if rails is not current:
            rails.close()
        current.adopt(link.connection)

    def _part(self, link: Link) -> None:
        nixl, info = self._engine.nixl, link.info
        if nixl is not None and info is not None and info.nixl is not None:
            if link.epoch != self.link.epoch or self.closed:
                nixl.forget(info.nixl.agent)
        link.close()

    def _copied(self, segment: RemoteSegment, offset: int, length: int) -> View:
        memory = Segment(np.empty(length, dtype=np.uint8), name="view")
        op = self._engine.read(memory, None, segment, (offset, length))
        op.wait()
        return View(memory.buffer.toreadonly(), op.check().transport, copied=True)

    def _require_open(self) -> None:
        if self.closed:
            raise self._closed_error()

    def _require_current(self, segment: RemoteSegment) -> None:
        if not self.closed and not self.alive and not self.hung:
            self.refresh()
        if (error := self.refusal(segment)) is not None:
            raise error

    def _closed_error(self) -> Closed:
        return Closed(f"the connection to {self.address} was closed; connect again")

    def __repr__(self) -> str:
        state = "closed" if self.closed else "alive" if self.alive else self.hung or "lost"
        return f"<Peer {self.address}, epoch {self.epoch:016x}, {state}>"


def _kept(segment: RemoteSegment | None, region: int) -> RemoteSegment | None:
    return segment if segment is not None and segment.region == region else None
