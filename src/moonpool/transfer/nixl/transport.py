"""The transport: small ops on the calling thread, the rest on one thread that looks at NIXL, since
NIXL tells nobody. It sleeps between looks, 20 us at first and up to a millisecond."""

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from moonpool import _core
from moonpool.core.errors import BadConfig, Closed, TooManyOps, Unreachable
from moonpool.core.sections import TransferConfig
from moonpool.transfer.base import OpState, Transfer
from moonpool.transfer.file_segment import FileSegment
from moonpool.transfer.nixl.agent import Agent
from moonpool.transfer.nixl.mover import Mover
from moonpool.transfer.nixl.offering import NixlOffering
from moonpool.transfer.nixl.op import NixlOp
from moonpool.transfer.nixl.package import load
from moonpool.transfer.op import Op, expired
from moonpool.transfer.segment import RemoteSegment

_RUNNING_MAX: Final = 16
# How long an op that is lost may take to land before its agent is condemned, and how long a
# condemned agent may still serve others.
_GRACE_S: Final = 0.02
_DRAIN_S: Final = 0.2
_DELAY_MIN_S: Final = 20e-6
_DELAY_MAX_S: Final = 1e-3
_TICK_S: Final = 5e-3


class NixlTransport:
    """`mover` makes a fresh moving agent: now, and whenever the last one had to go."""

    name = "nixl"

    def __init__(
        self,
        offering: NixlOffering,
        mover: Callable[[], Mover],
        inline_bytes: int,
        queue_ops_max: int,
    ) -> None:
        self.offering = offering
        self._make = mover
        self._mover: Mover | None = mover()
        self._inline_bytes = inline_bytes
        self._queue_ops_max = queue_ops_max
        self._ages = itertools.count()
        self._queue: list[tuple[int, float, int, NixlOp]] = []
        self._running: list[NixlOp] = []
        self._condemned: list[Mover] = []
        self._parted: deque[str] = deque()
        self._closed = False
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._watch, name="moonpool-nixl", daemon=True)
        self._thread.start()

    def submit(self, transfer: Transfer) -> Op:
        remote, info = transfer.remote, None
        if isinstance(remote, RemoteSegment) and (info := remote.peer.nixl) is None:
            op: Op = Op(transfer, self.name)
            op.settle(OpState.FAILED, error=Unreachable(f"{remote.peer.address} has no NIXL"))
            return op
        op = NixlOp(transfer, self, info)
        if transfer.deadline_s <= time.monotonic():
            op.settle(OpState.EXPIRED, error=expired(op))
        elif not transfer.nbytes:
            op.end()
        elif isinstance(remote, FileSegment):
            try:
                with remote.in_use():
                    self._start(op)
                    remote.hold(op)
            except Closed as error:
                op.settle(OpState.FAILED, error=error)
        else:
            self._start(op)
        return op

    def forget(self, agent: str) -> None:
        """For peers: that life of it is over."""
        self._parted.append(agent)

    def look(self, op: NixlOp) -> None:
        """Takes `op` a step further, unless somebody else is at it."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            ended = op in self._running and self._step(op, time.monotonic())
        finally:
            self._lock.release()
        if ended:
            op.end()

    def close(self) -> None:
        """Ends all ops, then both agents."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._work.notify()
        self._thread.join()
        self.offering.close()

    def _start(self, op: NixlOp) -> None:
        transfer, ended = op.transfer, False
        with self._lock:
            if self._closed:
                op.settle(OpState.FAILED, error=Closed("the engine is closed"))
                return
            if len(self._queue) + len(self._running) >= self._queue_ops_max:
                full = self._queue_ops_max
                text = f"{full} ops are under way: queue_ops_max is {full}; wait for some"
                op.settle(OpState.FAILED, error=TooManyOps(text))
                return
            mover = self._mover
            quick = transfer.nbytes <= self._inline_bytes and not self._queue
            if quick and mover is not None and mover.ready(transfer, op.info):
                op.post()
                self._running.append(op)
                ended = self._step(op, time.monotonic())
            else:
                urgency = (-transfer.priority, transfer.deadline_s, next(self._ages))
                heapq.heappush(self._queue, (*urgency, op))
            if not ended:
                self._work.notify()
        if ended:
            op.end()

    def _step(self, op: NixlOp, now_s: float) -> bool:
        mover = self._mover if self._mover and self._mover.condemned_s is None else None
        if not op.advance(mover, now_s):
            return False
        self._running.remove(op)
        return True

    def _watch(self) -> None:
        delay_s = _DELAY_MIN_S
        try:
            while not self._closed:
                with self._lock:
                    if not self._busy and not self._closed:
                        delay_s = _DELAY_MIN_S
                        self._work.wait(_TICK_S)
                    ended = self._round(time.monotonic())
                while ended:  # none is kept in a variable while this thread sleeps
                    ended.pop().end()
                    delay_s = _DELAY_MIN_S
                self.offering.progress()
                if self._busy:
                    time.sleep(delay_s)
                    delay_s = min(2 * delay_s, _DELAY_MAX_S)
        finally:
            # Whatever ends this thread, no op may wait for it.
            self._finish()

    @property
    def _busy(self) -> bool:
        return bool(self._queue or self._running or self._condemned)

    def _round(self, now_s: float) -> list[NixlOp]:
        ended = self._begin_queued(now_s)
        if self._mover is None and self._running and not self._condemned:
            self._renew(now_s)
        ended += [op for op in list(self._running) if self._step(op, now_s)]
        for op in self._running:
            if op.lost is not None and op.mover is not None and now_s > op.lost.at_s + _GRACE_S:
                op.mover.condemn(now_s)
        if self._mover is not None:
            if self._mover.condemned_s is None:
                self._tidy(self._mover)
            else:
                self._condemned.append(self._mover)
                self._mover = None
        for mover in list(self._condemned):
            self._tear_down(mover, now_s)
        return ended

    def _begin_queued(self, now_s: float) -> list[NixlOp]:
        """Begins the most urgent; returns those whose turn did not come by their deadline."""
        late = [op for _, due_s, _, op in self._queue if due_s <= now_s]
        if late:
            self._queue = [entry for entry in self._queue if entry[1] > now_s]
            heapq.heapify(self._queue)
        while self._queue and len(self._running) < _RUNNING_MAX:
            op = heapq.heappop(self._queue)[-1]
            if op.post():
                self._running.append(op)
        for op in late:
            op.lose(OpState.EXPIRED, expired(op), now_s)
        return late

    def _tidy(self, mover: Mover) -> None:
        mover.sweep()
        while self._parted and not self._running:
            mover.forget(self._parted.popleft())

    def _renew(self, now_s: float) -> None:
        try:
            self._mover = self._make()
        except BadConfig as error:
            for op in self._running:
                op.lose(OpState.FAILED, Unreachable(f"no new NIXL agent: {error}"), now_s)

    def _tear_down(self, mover: Mover, now_s: float) -> None:
        aboard = [op for op in self._running if op.mover is mover and op.flying]
        waits = any(op.lost is None and not op.troubled for op in aboard)
        assert mover.condemned_s is not None
        if waits and now_s < mover.condemned_s + _DRAIN_S:
            return
        self._condemned.remove(mover)
        # Until it is gone memory may change, so an agent that somebody keeps ends no op.
        if mover.agent.destroy():
            for op in aboard:
                op.grounded()

    def _finish(self) -> None:
        """Every op is lost, and no agent is left to do anything."""
        now_s = time.monotonic()
        closed = Closed("the engine was closed")
        with self._lock:
            self._closed = True
            ops = [*self._running, *(entry[-1] for entry in self._queue)]
            self._queue, self._running = [], []
            movers = [*self._condemned, *([self._mover] if self._mover else [])]
        gone = [mover for mover in movers if mover.agent.destroy()]
        for op in ops:
            if not op.flying or op.mover in gone:
                op.lose(OpState.FAILED, closed, now_s)
                op.end()


def open_nixl(config: TransferConfig, endpoint: _core.Endpoint) -> NixlTransport:
    """For the engine of `endpoint`. Raises MissingExtra, BadConfig."""
    library, name, lives = load(), f"moonpool-{endpoint.epoch:016x}", itertools.count()
    beyond_host = bool(config.token)  # as for listen(): without one only loopback

    def visitors() -> int:
        return int(endpoint.stats()["connections_open"])

    def mover() -> Mover:
        return Mover(Agent(library, f"{name}-{next(lives)}", beyond_host))

    offering = NixlOffering(name, beyond_host, visitors)
    return NixlTransport(offering, mover, config.inline_bytes, config.queue_ops_max)
