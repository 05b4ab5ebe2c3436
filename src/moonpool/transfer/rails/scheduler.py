"""Which slice goes over which rail: the least predicted completion time, learnt rail by rail.

Pure: no clock, no thread, no socket. The shell tells what happened and asks step() what to do; the
engine and the simulator run this same class. After TENT (Mooncake), with what its documents name as
gaps: errors at submit move a slice like any other, and a rail that is merely slow is demoted, too.
"""

import heapq
import math
import random
from collections.abc import Mapping

from moonpool.core.errors import BadInput, TooManyOps
from moonpool.transfer.rails.base import (
    Ended,
    Ending,
    Post,
    RailCost,
    RailLimits,
    RailState,
    RailView,
    Slice,
    Step,
)
from moonpool.transfer.rails.rail import Rail

# So many slices beyond what can be sent are planned for, so that a slow rail is not given one that
# a fast, busy one would finish sooner.
_AHEAD = 64

# Which rails may carry an op, by name, each with its rank: one of a higher rank carries slices only
# while none of a lower rank is up. None: all of them alike.
Ranks = Mapping[str, int] | None

_Queued = tuple[int, float, int, int, Slice]  # -priority, deadline, op, number: most urgent first


class _Open:
    """An op under way. `ending` is set once it is decided and only waits for its attempts."""

    __slots__ = (
        *("attempts", "deadline_s", "ending", "in_flight", "left", "peer", "priority", "ranks"),
        "why",
    )

    def __init__(
        self, peer: str, left: int, priority: int, deadline_s: float, ranks: Ranks
    ) -> None:
        self.peer = peer
        self.ranks = ranks
        self.left = left
        self.priority = priority
        self.deadline_s = deadline_s
        self.in_flight = 0
        self.attempts: dict[int, int] = {}
        self.ending: Ending | None = None
        self.why = ""


class RailScheduler:
    """Slices of many ops over the rails of many peers. Inside a peer the higher priority goes
    first, then the earlier deadline, then the older op."""

    def __init__(self, seed: int, limits: RailLimits | None = None) -> None:
        self.limits = limits or RailLimits()
        self._random = random.Random(seed)
        self._rails: dict[str, list[Rail]] = {}
        self._queues: dict[str, list[_Queued]] = {}
        self._ops: dict[int, _Open] = {}
        self._tickets: dict[int, Rail] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._touched: list[int] = []
        self._drops: list[int] = []
        self._next_op = 0
        self._next_ticket = 0
        self._slices = 0
        self._now_s = -math.inf
        self._leaving: set[str] = set()

    def add_rail(self, peer: str, name: str, prior: RailCost | None = None, rank: int = 0) -> None:
        """One more way to `peer`; `prior` is believed until it has carried something."""
        rails = self._rails.setdefault(peer, [])
        self._queues.setdefault(peer, [])
        if any(rail.name == name for rail in rails):
            raise BadInput(f"{peer} has a rail '{name}' already")
        rails.append(Rail(peer, name, prior or RailCost(), self.limits))

    def lose_rail(self, peer: str, name: str, why: str, now_s: float) -> None:
        """The rail is gone for now; ops that have no other one fail."""
        rail = self._rail(peer, name)
        if rail is None or rail.state is RailState.DOWN:
            return
        self._drops += rail.go_down(why, now_s)
        for number, op in self._ops.items():
            if op.peer == peer and op.ending is None and not self._has_rail(op):
                self._decide(number, Ending.FAILED, why)

    def regain_rail(self, peer: str, name: str, now_s: float) -> None:
        """A lost rail is there again: the next slice tries it."""
        if (rail := self._rail(peer, name)) is not None:
            rail.come_back(now_s)

    def forget(self, peer: str) -> None:
        """The peer was closed: its ops fail, and once they are over nothing of it is left."""
        for number, op in self._ops.items():
            if op.peer == peer:
                self._decide(number, Ending.FAILED, "the peer was closed")
        self._leaving.add(peer)

    def submit(
        self,
        peer: str,
        slices: list[tuple[int, int]],
        deadline_s: float,
        priority: int = 0,
        ranks: Ranks = None,
    ) -> int:
        """A new op of (blocks, bytes) slices; returns its number. `deadline_s` is a moment;
        `ranks` says which rails may carry it, and which rather.

        Raises TooManyOps naming the limit, BadInput for a peer without rails.
        """
        if peer not in self._rails or peer in self._leaving:
            raise BadInput(f"no rail leads to {peer}; there are rails to {list(self._rails)}")
        limits = self.limits
        if len(self._ops) >= limits.ops_max:
            raise TooManyOps(f"{len(self._ops)} ops are open: ops_max is {limits.ops_max}")
        if self._slices + len(slices) > limits.slices_max:
            raise TooManyOps(
                f"{len(slices)} more slices beside {self._slices}: slices_max is "
                f"{limits.slices_max}; wait for some ops, or take larger slices"
            )
        self._trim(peer)
        number = self._next_op
        self._next_op += 1
        op = self._ops[number] = _Open(peer, len(slices), priority, deadline_s, ranks)
        self._slices += len(slices)
        for at, (blocks, nbytes) in enumerate(slices):
            self._queue(Slice(number, at, blocks, nbytes))
        heapq.heappush(self._deadlines, (deadline_s, number))
        self._touched.append(number)
        if not self._has_rail(op):
            downs = [f"{rail.name}: {rail.why}" for rail in self._rails[peer]]
            self._decide(number, Ending.FAILED, f"no rail is left ({'; '.join(downs)})")
        return number

    def cancel(self, op: int) -> None:
        """The caller gave up; the op ends once its attempts have."""
        self._decide(op, Ending.CANCELLED, "cancelled by the caller")

    def expire(self, op: int) -> None:
        """A transport says that the op's deadline passed, before step() has seen it."""
        self._decide(op, Ending.EXPIRED, "the deadline passed")

    def done(self, ticket: int, now_s: float) -> None:
        """The slice of `ticket` arrived."""
        piece = self._tickets.pop(ticket).done(ticket, now_s)
        op = self._ops[piece.op]
        op.left -= 1
        self._slices -= 1
        self._over(piece)

    def wants(self, ticket: int) -> bool:
        """True while the slice of `ticket` would be sent again, should its attempt fail."""
        rail = self._tickets[ticket]
        return self._undecided(rail.flights[ticket].piece.op)

    def failed(
        self, ticket: int, now_s: float, why: str, *, rail_fault: bool = True, quiet: bool = True
    ) -> None:
        """The attempt of `ticket` is over, without its bytes: at submit or later, or because it was
        told to stop. With `rail_fault` the rail is demoted and the slice tried elsewhere; without,
        no rail would help, and the op fails, as it does when the attempt is not `quiet`."""
        rail = self._tickets.pop(ticket)
        stopped = ticket in rail.dropped
        piece = rail.lost(ticket, now_s)
        op = self._ops[piece.op]
        if not stopped:
            if rail_fault:
                self._drops += rail.demote(why, now_s)
                op.attempts[piece.number] = op.attempts.get(piece.number, 0) + 1
            if not rail_fault or op.attempts[piece.number] >= self.limits.attempts_max:
                self._decide(piece.op, Ending.FAILED, why)
        if not quiet:
            self._decide(piece.op, Ending.FAILED, why)
        if op.ending is None:
            self._queue(piece)
        self._over(piece)

    def step(self, now_s: float) -> Step:
        """What is to be done at this moment; call it after anything was told, and at wake_s()."""
        self._now_s = now_s
        self._expire(now_s)
        for rails in self._rails.values():
            self._demote_late(rails, now_s)
        drops, self._drops = self._drops, []
        ended = self._take_ended()
        posts = [post for peer in self._rails for post in self._assign(peer, now_s)]
        return Step(drops, ended, posts)

    def wake_s(self) -> float:
        """The next moment at which step() has something to do by itself; inf when none."""
        while self._deadlines and not self._undecided(self._deadlines[0][1]):
            heapq.heappop(self._deadlines)
        wake_s = self._deadlines[0][0] if self._deadlines else math.inf
        for peer, rails in self._rails.items():
            for rail in rails:
                if self._may_demote(rail, rails):
                    wake_s = min(wake_s, rail.overdue_s())
                resting = rail.state is RailState.DEMOTED and not rail.flights
                # One that has rested already had its chance: no slice that waits may use it.
                if resting and self._queues[peer] and rail.retry_s > self._now_s:
                    wake_s = min(wake_s, rail.retry_s)
        return wake_s

    def views(self) -> list[RailView]:
        """All rails, for people."""
        return [rail.view() for rails in self._rails.values() for rail in rails]

    @property
    def open_ops(self) -> int:
        return len(self._ops)

    def _queue(self, piece: Slice) -> None:
        op = self._ops[piece.op]
        entry = (-op.priority, op.deadline_s, piece.op, piece.number, piece)
        heapq.heappush(self._queues[op.peer], entry)

    def _over(self, piece: Slice) -> None:
        self._ops[piece.op].in_flight -= 1
        self._touched.append(piece.op)

    def _decide(self, number: int, ending: Ending, why: str) -> None:
        op = self._ops.get(number)
        if op is None or op.ending is not None:
            return
        op.ending, op.why = ending, why
        self._touched.append(number)
        for ticket, rail in self._tickets.items():
            if rail.flights[ticket].piece.op == number and ticket not in rail.dropped:
                rail.dropped.add(ticket)
                self._drops.append(ticket)

    def _expire(self, now_s: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, number = heapq.heappop(self._deadlines)
            self._decide(number, Ending.EXPIRED, "the deadline passed")

    def _undecided(self, number: int) -> bool:
        op = self._ops.get(number)
        return op is not None and op.ending is None

    def _demote_late(self, rails: list[Rail], now_s: float) -> None:
        for rail in rails:
            if rail.overdue_s() <= now_s and self._may_demote(rail, rails):
                self._drops += rail.late(now_s)

    def _may_demote(self, rail: Rail, rails: list[Rail]) -> bool:
        """The last rail that is up is not given up for being slow: nothing else would be faster."""
        others = any(other.state is RailState.UP and other is not rail for other in rails)
        return rail.state is RailState.PROBING or (rail.state is RailState.UP and others)

    def _take_ended(self) -> list[Ended]:
        ended = []
        touched, self._touched = self._touched, []
        for number in dict.fromkeys(touched):
            op = self._ops.get(number)
            if op is None or op.in_flight or (op.left and op.ending is None):
                continue
            # Whatever was decided meanwhile: all of it arrived.
            ending, why = (Ending.DONE, "") if not op.left else (op.ending or Ending.DONE, op.why)
            ended.append(Ended(number, ending, why))
            self._slices -= op.left
            del self._ops[number]
            self._sweep(op.peer)
        for peer in [one for one in self._leaving if not self._flies(one)]:
            self._leaving.discard(peer)
            self._rails.pop(peer, None)
            self._queues.pop(peer, None)
        return ended

    def _flies(self, peer: str) -> bool:
        return any(rail.flights for rail in self._rails.get(peer, ()))

    def _rail(self, peer: str, name: str) -> Rail | None:
        rails = self._rails.get(peer, ())
        return next((rail for rail in rails if rail.name == name), None)

    def _has_rail(self, op: _Open) -> bool:
        rails = self._rails[op.peer]
        return any(rail.state is not RailState.DOWN for rail in rails if _may(rail, op.ranks))

    def _trim(self, peer: str) -> None:
        """What ended ops left behind in the heaps goes once it is as much as may be open."""
        if len(self._deadlines) > 2 * self.limits.ops_max:
            self._deadlines = [one for one in self._deadlines if one[1] in self._ops]
            heapq.heapify(self._deadlines)
        queue = self._queues[peer]
        if len(queue) > 2 * self.limits.slices_max:
            queue[:] = [one for one in queue if one[2] in self._ops]
            heapq.heapify(queue)

    def _sweep(self, peer: str) -> None:
        queue = self._queues[peer]
        while queue and queue[0][2] not in self._ops:
            heapq.heappop(queue)

    def _assign(self, peer: str, now_s: float) -> list[Post]:
        """Plans the most urgent slices in order, each where it would be over first; what falls to
        a rail with credit is sent, the rest waits for the rail it was planned on."""
        rails, queue, posts = self._rails[peer], self._queues[peer], list[Post]()
        credit = self.limits.peer_slices_max - sum(len(rail.flights) for rail in rails)
        waits_s = {rail.name: rail.backlog_s(now_s) for rail in rails}
        held: list[_Queued] = []
        while queue and credit > 0 and len(held) < _AHEAD and _any_room(rails, now_s):
            entry = heapq.heappop(queue)
            piece = entry[-1]
            if not self._undecided(piece.op):
                continue
            rail = self._choose(rails, piece, waits_s, now_s)
            if rail is not None:
                waits_s[rail.name] += rail.model.predict(piece.blocks, piece.nbytes)
            if rail is None or rail.room <= 0:
                held.append(entry)
                continue
            posts.append(self._post(rail, piece, now_s))
            self._ops[piece.op].in_flight += 1
            credit -= 1
        for entry in held:
            heapq.heappush(queue, entry)
        return posts

    def _choose(
        self, rails: list[Rail], piece: Slice, waits_s: dict[str, float], now_s: float
    ) -> Rail | None:
        ranks = self._ops[piece.op].ranks
        for rail in rails:
            if _may(rail, ranks) and rail.due_for_probe(now_s):
                return rail
        up = [rail for rail in rails if rail.state is RailState.UP and _may(rail, ranks)]
        if not up:
            return None
        if ranks is not None:
            best = min(ranks[rail.name] for rail in up)
            up = [rail for rail in up if ranks[rail.name] == best]
        spare = [rail for rail in up if rail.room > 0]
        if len(spare) > 1 and self._random.random() < self.limits.probe_share:
            return self._random.choice(spare)
        return min(
            up, key=lambda rail: waits_s[rail.name] + rail.model.predict(piece.blocks, piece.nbytes)
        )

    def _post(self, rail: Rail, piece: Slice, now_s: float) -> Post:
        if rail.state is RailState.DEMOTED:
            rail.state = RailState.PROBING
        ticket = self._next_ticket
        self._next_ticket += 1
        rail.post(ticket, piece, now_s)
        self._tickets[ticket] = rail
        return Post(ticket, rail.peer, rail.name, piece)


def _may(rail: Rail, ranks: Ranks) -> bool:
    return ranks is None or rail.name in ranks


def _any_room(rails: list[Rail], now_s: float) -> bool:
    return any(
        rail.room > 0 if rail.state is RailState.UP else rail.due_for_probe(now_s) for rail in rails
    )
