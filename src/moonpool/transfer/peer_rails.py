"""The rails to one life of a peer: connections to each of its addresses, and who may send where.

Small ops take the first connection that lives. Large ones, and those with a priority, are cut into
slices that the runner's scheduler spreads. A lost rail is dialled again in the background; a write
given up on it is fenced off at the peer, over another connection, before it is sent anew.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from moonpool import _core
from moonpool.core.address import is_loopback, parse_address
from moonpool.core.errors import BadConfig, MoonpoolError, PeerRestarted, Unreachable
from moonpool.core.sections import TransferConfig
from moonpool.transfer.affinity import RailPath, Ranking, forbidden, ranked
from moonpool.transfer.base import OpState, Transfer
from moonpool.transfer.dialing import Line, LineState, dial_beside
from moonpool.transfer.fencing import Fences
from moonpool.transfer.netlink import route_to
from moonpool.transfer.op import Op
from moonpool.transfer.rails.base import RailLimits, RailView
from moonpool.transfer.tcp import TcpOp, start_tcp
from moonpool.transfer.topology import UNKNOWN_NODE, Nic, this_machine

if TYPE_CHECKING:
    from moonpool.transfer.engine import Engine

log = logging.getLogger("moonpool.transfer")

RAILS_MAX = 16


def planned(address: str, others: Sequence[str]) -> list[str]:
    """`address` first, then those of `others` that can lead to the same process from here."""
    plans = [address]
    if address.startswith("unix:"):
        return plans
    here = is_loopback(parse_address(address).host)
    for other in others:
        # What a peer calls loopback is another machine's only when we reach it as such, too.
        reachable = here or not is_loopback(parse_address(other).host)
        if reachable and other not in plans and len(plans) < RAILS_MAX:
            plans.append(other)
    return plans


def path_to(address: str, theirs: Nic | None) -> RailPath:
    """The way to `address` as our routing table has it."""
    if address.startswith("unix:"):
        return RailPath(address)
    name = route_to(parse_address(address).host).interface
    # An interface that sysfs does not show: of another namespace's sysfs, or made since.
    unknown = Nic(name, UNKNOWN_NODE, 0, True, "virtual") if name else None
    return RailPath(address, this_machine().nic(name) or unknown, theirs)


def rail_limits(config: TransferConfig) -> RailLimits:
    """How the scheduler behaves under these settings."""
    return RailLimits(slice_bytes=config.slice_bytes, ops_max=config.striped_ops_max)


class RailTransport:
    """Slices over one rail."""

    name = "tcp"

    def __init__(self, rails: "PeerRails", line: Line) -> None:
        self._rails = rails
        self._line = line

    def submit(self, transfer: Transfer) -> Op:
        connection = self._line.connection
        if connection is None or not connection.alive:
            self._rails.look()
            op = Op(transfer, self.name)
            error = Unreachable(f"the connection to {self._line.address} is lost")
            op.settle(OpState.FAILED, error=error)
            return op
        return start_tcp(connection, transfer, self._rails.pump, self._rails, heirs=False)

    def fence(self, attempt: Op, then: Callable[[bool], None]) -> None:
        """For the striper; see rails.striped."""
        if not isinstance(attempt, TcpOp) or attempt.answered:
            then(True)
            return
        self._rails.fences.fence(attempt.connection, then)
        self._rails.look()

    def close(self) -> None:
        """The connection belongs to the rails."""


class PeerRails:
    """Thread-safe. `key` names this life of the peer to the scheduler; `spare` may have
    connections beside the rails that can carry a fence."""

    def __init__(
        self,
        engine: "Engine",
        key: str,
        epoch: int,
        paths: Sequence[RailPath],
        spare: Callable[[], list[_core.Connection]],
    ) -> None:
        self.key = key
        self.epoch = epoch
        self.pump = engine.pump
        self.paths = paths
        policy = self._policy = engine.rail_policy
        allowed = [path.address for path in paths if not forbidden(path, policy)]
        if not allowed:
            whys = "; ".join(f"{path.address}: {forbidden(path, policy)}" for path in paths)
            raise BadConfig(f"no way to {paths[0].address} is allowed ({whys})")
        self.lines = [Line(address) for address in allowed]
        # There is more than one, up or not.
        self.many = len(allowed) > 1
        # The connection that was made first, for the hello, may carry data, too.
        self.primary = paths[0].address in allowed
        self._ranks: dict[tuple[int, int], dict[str, int] | None] = {}
        self._spare = spare
        self._engine = engine
        self._runner = engine.runner
        self._transports = [RailTransport(self, line) for line in self.lines]
        self._known: set[str] = set()
        self.fences = Fences(engine.pump, self.ways)
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._closed = False

    def living(self) -> _core.Connection | None:
        """The first connection that is not known to be lost."""
        for line in self.lines:
            connection = line.connection
            if connection is not None and connection.alive:
                return connection
        return None

    def takes(self, transfer: Transfer) -> bool:
        """Whether the scheduler carries `transfer`: it has a priority, or it is large and there are
        rails to share it."""
        if transfer.priority:
            return True
        if not self.many or transfer.nbytes < self._engine.config.stripe_bytes:
            return False
        return sum(line.up for line in self.lines) > 1

    def submit(self, transfer: Transfer) -> Op:
        """Over the best rails that are up, in slices."""
        ranks = self._ranks_of(transfer) if self.many else None
        strike = partial(self._runner.submit, self.key, transfer, ranks)
        if transfer.kind == "write" and self.fences.unanswered:
            return self.fences.before(transfer, self.fences.unanswered, strike)
        return strike()

    def send(self, transfer: Transfer, connection: _core.Connection) -> Op:
        """In one piece over `connection`."""
        fences = self.fences
        # What came before over the same connection is applied before this.
        if fences.unanswered and transfer.kind == "write" and fences.unanswered - {connection}:
            start = partial(start_tcp, connection, transfer, self.pump, self, heirs=self.many)
            return fences.before(transfer, fences.unanswered - {connection}, start)
        return start_tcp(connection, transfer, self.pump, self, heirs=self.many)

    def unanswered(self, connection: _core.Connection) -> None:
        """For tcp ops: a write over `connection` ended, and may still be applied at the peer."""
        self.fences.count(connection)

    def rankings(self, near_node: int, far_node: int) -> list[Ranking]:
        """All ways, the best first, with the reasons."""
        return ranked(self.paths, self._policy, near_node, far_node)

    def adopt(self, connection: _core.Connection) -> None:
        """The first rail has a connection, made by somebody else, who closes it; nothing comes of
        it when the rail has one that lives, or when it is to another life of the peer."""
        if not self.primary or connection.peer_epoch != self.epoch:
            return
        self.look()
        with self._lock:
            if self.lines[0].up or self._closed:
                return
            tell = self._came(0, connection)
        tell()

    def dial_all(self, wait_s: float) -> None:
        """Begins to dial what is not up, and waits so long for the first answers."""
        self.tend(time.monotonic())
        until_s = time.monotonic() + wait_s
        with self._lock:
            while any(line.state is LineState.DIALLING for line in self.lines):
                if not self._settled.wait(max(0.0, until_s - time.monotonic())):
                    return

    def look(self) -> None:
        """Takes note of connections that were lost since the last look."""
        now_s = time.monotonic()
        with self._lock:
            gone = [line for line in self.lines if line.state is LineState.UP and not line.up]
            for line in gone:
                line.lost("the connection was lost", now_s)
        for line in gone:
            self._runner.striper.look_at_rail(self.key, line.address, line.why_lost)

    def tend(self, now_s: float) -> None:
        """Notes losses, ends writes that waited too long for a fence, and dials again what has
        rested. A lone one that was made with the peer is left to the next op."""
        self.look()
        self.fences.expire(now_s)
        if self.primary and not self.many:
            return
        with self._lock:
            if self._closed:
                return
            due = [at for at, line in enumerate(self.lines) if line.dial(now_s)]
        for at in due:
            if why := dial_beside(partial(self._dial, at)):
                self._failed(at, why)

    def take_over(self, op: TcpOp) -> Op | None:
        """What becomes of a small op whose connection was lost under it: it goes over another one,
        a write only after the lost connection is over at the peer, too."""
        if self.living() is None:
            return None
        if op.transfer.kind == "read":
            return self.submit(op.transfer)
        # Counted as unanswered, it is fenced off before anything else is written.
        self.unanswered(op.connection)
        return self.submit(op.transfer)

    def ways(self) -> list[_core.Connection]:
        """Connections to this life of the peer, whatever they are for."""
        ways = [*(line.connection for line in self.lines), *self._spare()]
        alive = [way for way in ways if way is not None and way.alive]
        return [way for way in alive if way.peer_epoch == self.epoch]

    def views(self) -> dict[str, RailView]:
        """What the scheduler knows of each rail, by address."""
        views = self._runner.striper.views()
        return {view.rail: view for view in views if view.peer == self.key}

    def cut(self, address: str, why: str) -> None:
        """Nobody answers there: what is under way on that rail goes elsewhere."""
        for line in self.lines:
            if line.address != address:
                continue
            with self._lock:
                connection = line.connection
                line.lost(why, time.monotonic())
            self._runner.striper.look_at_rail(self.key, address, line.why_lost)
            if connection is not None:
                connection.close()

    def cut_all(self, why: str) -> None:
        """The peer hangs: nothing is waited for any more."""
        for line in self.lines:
            self.cut(line.address, why)

    def close(self) -> None:
        """Ends all connections; ops in slices fail."""
        with self._lock:
            self._closed = True
            connections = [line.connection for line in self.lines]
        self._runner.striper.forget(self.key)
        for connection in connections:
            if connection is not None:
                connection.close()

    def _ranks_of(self, transfer: Transfer) -> dict[str, int] | None:
        near, far = transfer.local.location.numa_node, transfer.remote.location.numa_node
        if (near, far) not in self._ranks:
            rankings = self.rankings(near, far)
            ranks = {one.address: one.rank for one in rankings if one.rank is not None}
            self._ranks[near, far] = ranks if len(set(ranks.values())) > 1 else None
        return self._ranks[near, far]

    def _dial(self, at: int) -> None:
        line = self.lines[at]
        connection: _core.Connection | None = None
        why = ""
        try:
            connection = self._engine.dial(line.address, self._engine.connect_timeout_s)
            if connection.peer_epoch != self.epoch:
                raise PeerRestarted("another process answers there")
        except Exception as error:  # whatever it was: what nobody settles is never dialled again
            why = str(error) or type(error).__name__
            if not isinstance(error, MoonpoolError):
                log.exception("dialling %s", line.address)
        tell: Callable[[], None] | None = None
        with self._lock:
            # Up already: it was adopted meanwhile.
            if connection is not None and not (why or self._closed or line.up):
                tell = self._came(at, connection)
                connection = None
        if tell is not None:
            tell()
        else:
            self._failed(at, why)
        with self._lock:
            self._settled.notify_all()
        if connection is not None:
            connection.close()

    def _failed(self, at: int, why: str) -> None:
        with self._lock:
            if self.lines[at].state is LineState.DIALLING:
                self.lines[at].failed(why, time.monotonic())
            self._settled.notify_all()

    def _came(self, at: int, connection: _core.Connection) -> Callable[[], None]:
        """Notes it; what is returned tells the scheduler, and is called without the lock, since the
        scheduler may ask for slices to be sent at once."""
        line, transport = self.lines[at], self._transports[at]
        line.came(connection, time.monotonic())
        striper, address = self._runner.striper, line.address
        if address in self._known:
            return lambda: striper.look_at_rail(self.key, address, line.why_lost)
        self._known.add(address)
        return lambda: striper.add_rail(self.key, address, transport, None, transport.fence)
