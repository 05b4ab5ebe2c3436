"""Copying wanted objects from the copies that are known of them, a silent copy's from the next one,
too. Whatever happens, the caller's memory is written by one read at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from moonpool.pool import messages as m
from moonpool.pool.client_state import Placement, Replica
from moonpool.pool.hedging import awaited
from moonpool.pool.ports import (
    BELOW,
    U32,
    U64,
    Buffer,
    Outcome,
    Port,
    ReadCall,
    ReadRangeCall,
    Status,
)
from moonpool.pool.protocol import Context, Protocol, RaceAgents, ask, call_all
from moonpool.pool.read_order import Rank, best, weighed
from moonpool.pool.read_race import Entry, ReadRace, copy_whole, own_memory
from moonpool.pool.results import Hit, Miss, MissReason

_OK = int(Status.OK)
_AWAY = {int(Status.UNREACHABLE), int(Status.CANCELLED), int(Status.EXPIRED)}
AWAY_S = 1.0  # what a read of a node counts as that could not be reached
HEDGED_BYTES_MAX = 64 << 20  # own memory of one call; more of it is waited for

FAILURE = {
    Status.CORRUPT: MissReason.CORRUPT,
    Status.BOUNDS: MissReason.BUFFER_TOO_SMALL,
    Status.EXPIRED: MissReason.UNREACHABLE,
    Status.UNREACHABLE: MissReason.UNREACHABLE,
    Status.CANCELLED: MissReason.DEADLINE,
    Status.REFUSED: MissReason.REFUSED,
    Status.MOVED: MissReason.ABSENT,
    Status.NOT_FOUND: MissReason.UNREACHABLE,
}


class Wanted:
    """One key of a fetch on its way to a hit or a miss."""

    __slots__ = ("buffer", "index", "key", "looks", "owned", "placement", "reason", "tried")

    def __init__(self, index: int, key: bytes, buffer: Buffer | None) -> None:
        self.index = index
        self.key = key
        self.buffer = buffer
        self.owned = buffer is None
        self.placement: Placement | None = None
        self.tried: set[Replica] = set()  # a node that came back at another address is another
        self.looks = 0
        self.reason = MissReason.ABSENT

    def next_replica(self) -> Replica | None:
        assert self.placement is not None
        for replica in self.placement.replicas:
            if replica not in self.tried:
                return replica
        return None

    def choose(self, ranks: Mapping[Port, Rank] | None) -> Replica:
        """The best one left; without `ranks` by place alone."""
        if ranks is None:
            replica = self.next_replica()
        else:
            assert self.placement is not None
            replica = best(self.placement.replicas, self.tried, ranks)
        assert replica is not None
        return replica

    def beside(self, busy: Replica, ranks: Mapping[Port, Rank] | None = None) -> list[Replica]:
        """Others in memory that are left, best first."""
        assert self.placement is not None
        others = [
            replica
            for replica in self.placement.replicas
            if replica is not busy and replica not in self.tried and replica.port.kind not in BELOW
        ]
        if ranks is not None:
            others.sort(key=lambda replica: ranks[replica.port])
        return others

    @property
    def size(self) -> int:
        assert self.placement is not None
        return self.placement.size

    def target(self) -> Buffer:
        """The caller's buffer, or one of ours of the object's size."""
        if self.owned:
            self.buffer = np.empty(self.size, np.uint8)
        return self.buffer

    def take(self, memory: Buffer, size: int) -> bool:
        """What came into memory beside the target. False: the caller's buffer is too small."""
        if self.owned:
            self.buffer = memory
            return True
        return copy_whole(memory, size, self.buffer)

    def hit(self, size: int, node: str) -> Hit:
        return Hit(size, node, self.buffer.tobytes() if self.owned else None)  # type: ignore[union-attr]


class Reading:
    """One round: each wanted object's best copy, grouped by port."""

    def __init__(self, context: Context, wanted: Sequence[Wanted], verify: bool) -> None:
        self._context = context
        self._hedging = context.state.hedging
        self._verify = verify
        self.all_well = False  # nobody competed, and every first read is a good one
        self.wanted = wanted
        self.replicas: list[list[Replica]] = []  # of each call of the race
        self._nbytes: list[int] = []
        # While a copy lies elsewhere, a silent node may take half of the time that is left.
        self._elsewhere = any(
            len(want.placement.replicas) > len(want.tried) + 1 for want in wanted if want.placement
        )
        self._ranks = self._weigh() if self._elsewhere else None
        chosen = [(i, want.choose(self._ranks)) for i, want in enumerate(wanted)]
        left = context.left()
        self._first_s = left / 2 if self._elsewhere else left
        firsts = [self._entry(group, False) for group in _by_port(chosen)]
        self.race = ReadRace(firsts, self._first_s, left, self._others)

    def _weigh(self) -> dict[Port, Rank] | None:
        """How the ports of all copies compare now; None: as they were placed."""
        state = self._context.state
        ports = {
            replica.port
            for want in self.wanted
            if want.placement is not None
            for replica in want.placement.replicas
        }
        ranks = {port: state.rank(port) for port in ports}
        return weighed(ranks, state.hedging, state.costs, self._context.now())

    def run(self) -> Protocol[None]:
        race, now = self.race, self._context.now
        began = now()
        tier = any(entry.port.kind in BELOW for entry in race.entries)
        if race.hedged and not tier:
            yield RaceAgents(race)
        else:
            calls = [(entry.port, entry.call) for entry in race.entries]
            outcomes = yield from call_all(self._context, list(calls), self._first_s)
            took_s = now() - began
            self.all_well = all(_well(outcome) for outcome in outcomes)
            if self.all_well:
                race.outcomes, race.took_s = list(outcomes), [took_s] * len(outcomes)
            else:
                for number, outcome in enumerate(outcomes):
                    race.ended(number, outcome, took_s)
        # Of what is never read twice nothing need be known; beside a tier times are not its own.
        if self._elsewhere and not tier:
            self._learn(began, now())

    def _learn(self, began: float, now: float) -> None:
        race, costs = self.race, self._context.state.costs
        for number, entry in enumerate(race.entries[: race.firsts]):
            port, outcome, nbytes = entry.port, race.outcomes[number], self._nbytes[number]
            if not awaited(port):
                continue
            if outcome is None:
                self._hedging.lost(port, now)
                costs.took(port.incarnation, nbytes, now - began, now)
            elif _well(outcome):
                self._hedging.answered(port, nbytes, race.took_s[number])
                costs.took(port.incarnation, nbytes, race.took_s[number], now)
            elif not _AWAY.isdisjoint(outcome.status.tobytes()):
                costs.took(port.incarnation, nbytes, max(AWAY_S, race.took_s[number]), now)

    def _entry(self, members: list[tuple[int, Replica]], beside: bool) -> Entry:
        self.replicas.append([replica for _, replica in members])
        wants = [self.wanted[i] for i, _ in members]
        port = members[0][1].port
        sizes = [want.size for want in wants]
        self._nbytes.append(sum(sizes))
        buffers: Sequence[Buffer] = (
            own_memory(sizes) if beside else [want.target() for want in wants]
        )
        slots = np.array([replica.slot for _, replica in members], np.uint32)
        generations = np.array([replica.generation for _, replica in members], np.uint64)
        call = self.call(wants, slots, generations, buffers)
        after_s = None
        if self._elsewhere and not beside and awaited(port):
            if any(self.wanted[i].beside(replica) for i, replica in members):
                after_s = self._hedging.after_s(port, sum(sizes))
        return Entry(port, call, [i for i, _ in members], after_s)

    def call(
        self, wants: Sequence[Wanted], slots: U32, generations: U64, buffers: Sequence[Buffer]
    ) -> ReadCall | ReadRangeCall:
        """What is asked of one port."""
        return ReadCall(slots, generations, buffers, self._verify)

    def _others(self, number: int, wants: list[int]) -> list[Entry]:
        """The silent call's objects on their next copies, as far as there are any."""
        now, total = self._context.now(), 0
        busy = dict(zip(self.race.entries[number].wants, self.replicas[number], strict=True))
        chosen: list[tuple[int, Replica]] = []
        for i in wants:
            others = self.wanted[i].beside(busy[i], self._ranks)
            total += self.wanted[i].size
            if others and total <= HEDGED_BYTES_MAX:
                healthy = [one for one in others if not self._hedging.slow(one.port, now)]
                chosen.append((i, (healthy or others)[0]))
        if not chosen or not self._hedging.allow():
            return []
        return [self._entry(group, True) for group in _by_port(chosen)]


def read_wanted(
    context: Context,
    wanted: list[Wanted],
    results: list[Hit | Miss],
    corrupt: list[tuple[Placement, Replica]],
    verify: bool,
) -> Protocol[list[Wanted]]:
    """Read each from its best copy; those that have to be tried again."""
    reading = Reading(context, wanted, verify)
    yield from reading.run()
    if reading.all_well:
        _take_all(context, reading, results)
        return []
    race, again = reading.race, []
    moved = _note_failures(reading, corrupt)
    columns = [
        ([], []) if outcome is None else (outcome.status.tolist(), outcome.sizes.tolist())
        for outcome in race.outcomes
    ]
    below = any(entry.port.kind in BELOW for entry in race.entries)
    for i, want in enumerate(wanted):
        won = race.winner.get(i)
        if won is None:
            assert want.placement is not None
            if i in moved or want.next_replica() is None:
                context.state.forget(want.key, want.placement)
                want.placement = None
            again.append(want)
            continue
        number, block = won
        status, size = columns[number][0][block], columns[number][1][block]
        entry = race.entries[number]
        fits = status == _OK
        if fits and number >= race.firsts:
            fits = want.take(entry.call.buffers[block], size)
        if not fits:
            results[want.index] = Miss(MissReason.BUFFER_TOO_SMALL)
            continue
        results[want.index] = want.hit(size, entry.port.node)
        if below and entry.port.kind in BELOW and want.placement is not None:
            touch_below(context, want.placement)
    return again


def _take_all(context: Context, reading: Reading, results: list[Hit | Miss]) -> None:
    """The usual end."""
    for entry, outcome in zip(reading.race.entries, reading.race.outcomes, strict=True):
        assert outcome is not None
        node, below = entry.port.node, entry.port.kind in BELOW
        for i, size in zip(entry.wants, outcome.sizes.tolist(), strict=True):
            want = reading.wanted[i]
            results[want.index] = want.hit(size, node)
            if below and want.placement is not None:
                touch_below(context, want.placement)


def _note_failures(reading: Reading, corrupt: list[tuple[Placement, Replica]]) -> set[int]:
    """What failed is not tried again. Numbers of objects that lie elsewhere by now."""
    race, moved = reading.race, set()
    for entry, replicas, outcome in zip(race.entries, reading.replicas, race.outcomes, strict=True):
        if outcome is None or _well(outcome):
            continue  # given up for a better one, or all well
        statuses = outcome.status.tolist()
        for i, replica, status in zip(entry.wants, replicas, statuses, strict=True):
            want = reading.wanted[i]
            assert want.placement is not None
            if status == Status.CORRUPT:
                corrupt.append((want.placement, replica))
            if i not in race.winner:
                want.tried.add(replica)
                want.reason = FAILURE.get(Status(status), MissReason.UNREACHABLE)
                if status == Status.MOVED:
                    moved.add(i)
    return moved


def _well(outcome: Outcome) -> bool:
    return not outcome.status.tobytes().strip(b"\0")  # a tenth of what numpy's any() takes


def _by_port(chosen: list[tuple[int, Replica]]) -> list[list[tuple[int, Replica]]]:
    groups: dict[int, list[tuple[int, Replica]]] = {}
    for member in chosen:
        groups.setdefault(id(member[1].port), []).append(member)
    return list(groups.values())


def touch_below(context: Context, placement: Placement) -> None:
    """A read of what is remembered nowhere, because its only copies lie below memory."""
    if placement.replicas[0].port.kind in BELOW:
        context.state.touches.add(placement.row, placement.sequence, context.now())


def report(context: Context, corrupt: list[tuple[Placement, Replica]]) -> Protocol[None]:
    """Tell the master which replicas failed their CRC, so that nobody reads them again."""
    by_incarnation = {
        endpoint.incarnation: segment for segment, endpoint in context.state.endpoints.items()
    }
    known = [(p, r) for p, r in corrupt if r.port.incarnation in by_incarnation]
    message = m.Report(
        np.array([p.row for p, _ in known], np.int32).tobytes(),
        np.array([p.sequence for p, _ in known], np.uint64).tobytes(),
        np.array([by_incarnation[r.port.incarnation] for _, r in known], np.uint16).tobytes(),
        np.array([r.slot for _, r in known], np.uint32).tobytes(),
        np.array([r.generation for _, r in known], np.uint64).tobytes(),
    )
    yield from ask(context, message)
