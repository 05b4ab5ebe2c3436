"""The engine: this process's registered memory, its peers, and transfers between the two."""

import itertools
import os
import secrets
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self

from moonpool import _core
from moonpool.core.address import Address, parse_address
from moonpool.core.errors import BadInput, Closed, did_you_mean
from moonpool.core.open_door import refuse_open_door
from moonpool.core.sections import TransferConfig
from moonpool.transfer.announcer import Announcer
from moonpool.transfer.base import Transfer, Transport
from moonpool.transfer.block_op import begin_blocks
from moonpool.transfer.copying import CopyRunner
from moonpool.transfer.directory import EngineEntry, EtcdDirectory, check_engine_name
from moonpool.transfer.dispatch import configured, policy_of
from moonpool.transfer.explain import TRANSPORTS, Choice, explain
from moonpool.transfer.file_segment import FileSegment
from moonpool.transfer.inbox import Inbox
from moonpool.transfer.keeper import Keeper
from moonpool.transfer.local import LocalTransport
from moonpool.transfer.native_errors import NATIVE_ERRORS, translated
from moonpool.transfer.nixl import open_nixl
from moonpool.transfer.notification import checked_message
from moonpool.transfer.notifying import Notifier
from moonpool.transfer.op import Op, Tally
from moonpool.transfer.own_segments import OwnSegments
from moonpool.transfer.peer import Peer
from moonpool.transfer.peer_calls import ENGINES, PeerCalls
from moonpool.transfer.peer_rails import rail_limits
from moonpool.transfer.prepared import Prepared
from moonpool.transfer.rail_runner import RailRunner
from moonpool.transfer.registry import Registry
from moonpool.transfer.request import (
    LocalTarget,
    Target,
    checked_deadline,
    checked_priority,
    checked_transfer,
)
from moonpool.transfer.segment import Segment
from moonpool.transfer.shm import ShmTransport
from moonpool.transfer.tcp import CompletionPump, TcpTransport
from moonpool.transfer.vram_segment import VramSegment

# How long a connect waits for rails beside the first one; they may come later, too.
_DIAL_S = 0.25


class Engine(OwnSegments, PeerCalls):
    """Registers memory, connects to peers, moves blocks. Thread-safe; a context manager: one that
    has peers lives, with its threads, until it is closed.

    Settings are those of TransferConfig, given as a struct or by name: `Engine(deadline_ms=500)`.
    An unknown one is an error.
    """

    def __init__(self, config: TransferConfig | None = None, **options: Any) -> None:
        self.config = configured(config, options)
        self.epoch = secrets.randbits(64) | 1
        self.connect_timeout_s = self.config.connect_timeout_ms / 1000
        self.queue_ops_max = self.config.queue_ops_max
        self.closed = False
        self._owner = os.getpid()
        self.address = ""
        self.addresses: list[str] = []
        self._deadline_s = self.config.deadline_ms / 1000
        self._endpoint = _core.Endpoint(
            self.epoch,
            self.config.token.encode(),
            notifications_max=self.config.notifications_max,
            share_cpu=self.config.share_cpu,
        )
        self.inbox = Inbox(self._endpoint)
        self._notifier = Notifier(self)
        self.nixl = open_nixl(self.config, self._endpoint) if self.config.nixl else None
        self._registry = Registry(self._endpoint, self.nixl.offering if self.nixl else None)
        self._lock = threading.RLock()
        self._peers: list[Peer] = []
        self._files: list[FileSegment] = []
        self._vram: list[VramSegment] = []
        self.tally = Tally()
        self.heartbeat_s = self.config.heartbeat_ms / 1000
        self.patience_s = self.config.hang_ms / 1000 - 2 * self.heartbeat_s
        self.pump = CompletionPump(self._endpoint)
        self.runner = RailRunner(self.epoch, rail_limits(self.config))
        self.rail_policy = policy_of(self.config)
        self._keeper = Keeper(self)
        self._lives = itertools.count()
        self.directory = EtcdDirectory(self.config.etcd) if self.config.etcd else None
        self._announcer: Announcer | None = None
        if self.directory is not None and self.config.name:
            check_engine_name(self.config.name)
            self._announcer = Announcer(self.directory, self._entry, self.config.name_ttl_s)
        copies = CopyRunner(self.config.inline_bytes, self.queue_ops_max)
        self._transports: dict[str, Transport] = {
            "local": LocalTransport(copies),
            "shm": ShmTransport(copies),
            "tcp": TcpTransport(self.pump),
        }
        if self.nixl is not None:
            self._transports["nixl"] = self.nixl
        ENGINES[self.epoch] = self

    def allocate(
        self, nbytes: int, name: str = "", *, shared: bool = True, writable: bool = True
    ) -> Segment:
        """Fresh zeroed memory. With a name peers may read it, and write it if `writable`; `shared`
        memory they can map on this host. Without a name it is ours alone.

        Raises BadInput for a bad size or a name that is taken, SegmentSpace when there is no room.
        """
        self._require_open()
        return self._registry.allocate(nbytes, name, shared, writable)

    def register(self, buffer: Any, name: str = "", *, writable: bool = True) -> Segment:
        """Memory that exists already: numpy, CPU tensors, any with the buffer protocol; no copy.

        With a name peers may read it, and write it if `writable`. Without a name it is ours alone.
        Raises BadInput for memory that is not contiguous, read-only though `writable`, or a name
        that is taken.
        """
        self._require_open()
        return self._registry.register(buffer, name, writable)

    def listen(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Lets peers in over TCP, and over a UNIX socket for shared memory; returns the address.

        Port 0 takes any free one. Beyond loopback a token is needed. Called again it listens on one
        more host: peers are told all `addresses`, and take each for a rail; `address` is the first.
        With a `name` it is announced in the directory from then on. Raises BadConfig, BadInput for
        a host that it listens on already, Unreachable when the port is taken, or etcd out of reach.
        """
        self._require_open()
        if not isinstance(port, int) or not 0 <= port <= 65535:
            raise BadInput(f"a port is 0 to 65535, not {port!r}")
        refuse_open_door("transfer", host, self.config.token)
        with self._lock:
            taken = next((one for one in self.addresses if parse_address(one).host == host), None)
            if taken is not None:
                raise BadInput(f"this engine listens on {taken} already")
            try:
                bound = self._endpoint.listen_tcp(host, port)
                if self.config.shared_memory and not self._registry.unix_path:
                    self._registry.unix_path = self._listen_unix()
            except NATIVE_ERRORS as error:
                raise translated(error, f"cannot listen on {host}:{port}") from None
            bound_to = str(Address(host, bound))
            self.addresses.append(bound_to)
            self.address = self.address or bound_to
            self._registry.announce(self.addresses)
        if self._announcer is not None:
            self._announcer.announce()
        return bound_to

    def connect(
        self, address: str, timeout: float | None = None, rails: Sequence[str] | None = None
    ) -> Peer:
        """A peer at "host:port" or "unix:/path", or by its name in the directory, after the hello.

        `rails` are more addresses of the same process; by default those that it announces. One
        that does not answer is tried again in the background. Raises Unreachable,
        DeadlineExceeded after `timeout` seconds, Refused (wrong token), ProtocolMismatch.
        """
        self._require_open()
        named = self.directory is not None and ":" not in address
        for one in (*(() if named else (address,)), *(rails or ())):
            parse_address(one)
        timeout_s = self.connect_timeout_s if timeout is None else checked_deadline(timeout)
        name = check_engine_name(address) if named else ""
        link = self.open_named(name, timeout_s) if name else self.open_link(address, timeout_s)
        peer = Peer(self, link.address, link, rails, name)
        with self._lock:
            self._peers.append(peer)
        peer.rails.dial_all(min(_DIAL_S, timeout_s))
        self._keeper.watch(peer)
        return peer

    def read(
        self,
        dst: LocalTarget,
        dst_ids: Any,
        src: Target,
        src_ids: Any,
        *,
        deadline: float | None = None,
        checksum: bool | None = None,
        transport: str | None = None,
        priority: int = 0,
        notify: bytes | None = None,
    ) -> Op:
        """Copies blocks of `src` (a peer's, or this process's) into `dst`; returns at once.

        For a layout the ids are an int or a 1-D integer array (None: all blocks); for a segment
        they are (offsets, lengths). Block i of `src_ids` goes to block i of `dst_ids`; they must be
        equally long. Destination blocks must not overlap. `deadline` in seconds, default 5;
        `transport` allows only that one. What waits for a peer goes by the higher `priority`, then
        by the earlier deadline. With `notify` the op is DONE only when the peer has that message,
        after the data, in its `inbox`; it is told of other ends as well as it goes. Raises BadInput
        before anything is sent; what the world does (dead peer, lost bytes) is in the op.
        """
        if priority == 0 and notify is None and not self.closed:
            op = begin_blocks(
                self, "read", dst, dst_ids, src, src_ids, deadline, checksum, transport
            )
            if op is not None:
                return op
        return self._submit(
            "read", dst, dst_ids, src, src_ids, deadline, checksum, transport, priority, notify
        )

    def write(
        self,
        src: LocalTarget,
        src_ids: Any,
        dst: Target,
        dst_ids: Any,
        *,
        deadline: float | None = None,
        checksum: bool | None = None,
        transport: str | None = None,
        priority: int = 0,
        notify: bytes | None = None,
    ) -> Op:
        """Copies blocks of our `src` into `dst` of a peer; otherwise as read().

        DONE means that the bytes stand in the peer's memory. After any other end the destination
        blocks whose status is not OK may hold old, new or mixed bytes.
        """
        if priority == 0 and notify is None and not self.closed:
            op = begin_blocks(
                self, "write", src, src_ids, dst, dst_ids, deadline, checksum, transport
            )
            if op is not None:
                return op
        return self._submit(
            "write", src, src_ids, dst, dst_ids, deadline, checksum, transport, priority, notify
        )

    def prepare(
        self,
        kind: Literal["read", "write"],
        local: LocalTarget,
        local_ids: Any,
        remote: Target,
        remote_ids: Any,
        *,
        deadline: float | None = None,
        checksum: bool | None = None,
        transport: str | None = None,
        priority: int = 0,
    ) -> Prepared:
        """A transfer to be posted again and again: all is checked and resolved now, as read() and
        write() do it each time; `local` is our end. Raises BadInput."""
        if kind not in ("read", "write"):
            raise BadInput(f"a transfer is a 'read' or a 'write', not {kind!r}")
        how = (deadline, checksum, transport, priority, None)
        transfer, deadline_s = self._checked(kind, local, local_ids, remote, remote_ids, *how)
        return Prepared(self, transfer, transport, deadline_s)

    def explain(
        self,
        target: Target,
        nbytes: int | None = None,
        blocks: int = 1,
        local: Segment | None = None,
    ) -> list[Choice]:
        """How a transfer of `blocks` blocks, `nbytes` in all (default: the whole target), would go
        to or from `target`, and why; usable transports first, in the order they are tried. Of
        several rails each has its place, for memory like that of `local`."""
        return explain(target, nbytes, blocks, local)

    def stats(self) -> dict[str, Any]:
        """Counts since the start: `ops` by transport and state (an op counts once somebody has
        seen it end), `endpoint` of the data plane, and how many segments and peers there are."""
        with self._lock:
            return {
                "ops": self.tally.snapshot(),
                "endpoint": dict(self._endpoint.stats()),
                "segments": len(self._registry.segments),
                "peers": len(self._peers),
                "lost_peers": sum(not peer.alive for peer in self._peers),
            }

    @property
    def segments(self) -> dict[str, Segment]:
        """Our segments that peers can see, by name."""
        return dict(self._registry.segments)

    def close(self) -> None:
        """Ends all ops, connections and registrations; quiet when it returns. In a forked child it
        ends nothing: all of it is the parent's."""
        if os.getpid() != self._owner:
            # No lock, which a thread that was not forked may hold, and no descriptor: they are
            # shared, and what is written to wake a thread wakes the parent's.
            self.closed = True
            return
        with self._lock:
            if self.closed:
                return
            self.closed = True
            peers = list(self._peers)
        self._keeper.close()
        if self._announcer is not None:
            self._announcer.close()
        for peer in peers:
            peer.close()
        self._registry.close()
        self._close_own()
        self._transports["local"].close()
        self._endpoint.close()
        self._transports["tcp"].close()
        if self.nixl is not None:
            self.nixl.close()
        self.runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = self.address or "not listening"
        return f"<Engine {self.epoch:016x}, {where}, {len(self._registry.segments)} segments>"

    def forget(self, peer: Peer) -> None:
        """For peers: one was closed."""
        with self._lock:
            if peer in self._peers:
                self._peers.remove(peer)
        self._keeper.forget(peer)

    def _submit(self, kind: str, *what: Any) -> Op:
        transfer, _ = self._checked(kind, *what)
        return self.post(transfer, via=what[6])

    def _checked(
        self,
        kind: str,
        local: LocalTarget,
        local_ids: Any,
        remote: Target,
        remote_ids: Any,
        deadline: float | None,
        checksum: bool | None,
        via: str | None,
        priority: int,
        notify: bytes | None,
    ) -> tuple[Transfer, float]:
        self._require_open()
        if via is not None and via not in TRANSPORTS:
            raise BadInput(f"unknown transport {via!r}.{did_you_mean(str(via), TRANSPORTS)}")
        deadline_s = self._deadline_s if deadline is None else checked_deadline(deadline)
        checksum = self.config.checksum if checksum is None else checksum
        transfer = checked_transfer(
            kind, local, local_ids, remote, remote_ids, deadline_s, checksum
        )
        if priority:
            transfer = transfer._replace(priority=checked_priority(priority))
        if notify is not None:
            transfer = transfer._replace(notify=checked_message(notify, transfer.remote))
        return transfer, deadline_s

    def _entry(self) -> EngineEntry:
        segments = {name: one.nbytes for name, one in self.segments.items()}
        return EngineEntry(
            name=self.config.name,
            epoch=self.epoch,
            addresses=list(self._registry.addresses),
            segments=segments,
        )

    def _listen_unix(self) -> str:
        folder = self.config.directory
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = str(folder / f"engine-{self.epoch:016x}.sock")
        self._endpoint.listen_unix(path)
        return path

    def _require_open(self) -> None:
        if self.closed:
            raise Closed("this engine is closed; make a new one")
