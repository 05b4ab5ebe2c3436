"""Reads of first copies, and of next copies of what is silent too long; the first good one wins.

    memory              first reads        the others              after the race
    the caller's        the first read     -                       quiet: that read is over
    of the race's own   -                  one other read a piece  dropped, or copied by the caller

Pure: a shell carries the calls (`run_race` is that of blocking ones) and says what became of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, repeat
from typing import NamedTuple

import numpy as np

from moonpool.pool.ports import (
    AgentCall,
    AwaitedCall,
    Buffer,
    Finisher,
    Outcome,
    Port,
    ReadCall,
    ReadRangeCall,
    Status,
)

_OK, _BOUNDS = int(Status.OK), int(Status.BOUNDS)  # to name a member costs as much as a read
SLICE_S = 0.001  # of a wait for one of two calls
WHOLE_S = 3600.0  # any call's own deadline comes first


class Entry(NamedTuple):
    """A call and the numbers of the wanted objects that its blocks are for."""

    port: Port
    call: ReadCall | ReadRangeCall
    wants: Sequence[int]
    after_s: float | None  # silent so long, it is begun on other copies, too


Others = Callable[[int, list[int]], list[Entry]]


class ReadRace:
    """`others(number, wants)` makes the calls that are begun beside silent call `number`, for the
    objects that are still wanted of it: to other ports, into memory that nobody else has."""

    def __init__(
        self, entries: Iterable[Entry], first_s: float, whole_s: float, others: Others
    ) -> None:
        """First reads are over after `first_s`, all of the race after `whole_s`."""
        self.entries = list(entries)
        self.firsts = len(self.entries)
        self.outcomes: list[Outcome | None] = [None] * self.firsts
        self.took_s = [0.0] * self.firsts
        self._first_s = max(0.001, first_s)
        self._whole_s = whole_s
        self._others = others
        self._due = {i: e.after_s for i, e in enumerate(self.entries) if e.after_s is not None}
        self._open: dict[int, int] = {}
        self.winner: dict[int, tuple[int, int]] = {}  # of an object: which call, which block
        for entry in self.entries:  # an object is in one of the first reads only
            self._open.update(dict.fromkeys(entry.wants, 1))

    @property
    def hedged(self) -> bool:
        """Some of it may be begun twice, so that it has to be waited for with a clock."""
        return bool(self._due) or len(self.entries) > self.firsts

    @property
    def over(self) -> bool:
        """Every object is read, or all its calls have ended."""
        return all(want in self.winner or not count for want, count in self._open.items())

    def timeout_s(self, elapsed_s: float, number: int) -> float:
        if number < self.firsts:
            return self._first_s
        return max(0.001, self._whole_s - elapsed_s)

    def next_due_s(self) -> float | None:
        """When `begin` may have something to begin, in seconds after the race began."""
        return min(self._due.values(), default=None)

    def begin(self, elapsed_s: float) -> range:
        """Numbers of calls to begin now, because others are silent."""
        before = len(self.entries)
        for number, due in list(self._due.items()):
            if due > elapsed_s:
                continue
            del self._due[number]
            wants = [want for want in self.entries[number].wants if want not in self.winner]
            for entry in self._others(number, wants):
                self.entries.append(entry)
                self.outcomes.append(None)
                self.took_s.append(0.0)
                self._count(entry)
        return range(before, len(self.entries))

    def ended(self, number: int, outcome: Outcome, elapsed_s: float) -> None:
        self.outcomes[number] = outcome
        self.took_s[number] = elapsed_s
        self._due.pop(number, None)
        wants = self.entries[number].wants
        if len(self.entries) == self.firsts and not outcome.status.any():  # nobody competes
            self._open.update(dict.fromkeys(wants, 0))
            blocks = zip(repeat(number), range(len(wants)), strict=False)
            self.winner.update(zip(wants, blocks, strict=True))
            return
        statuses = outcome.status.tolist()
        for block, (want, status) in enumerate(zip(wants, statuses, strict=True)):
            self._open[want] -= 1
            if (status == _OK or status == _BOUNDS) and want not in self.winner:
                self.winner[want] = (number, block)

    def _count(self, entry: Entry) -> None:
        for want in entry.wants:
            self._open[want] = self._open.get(want, 0) + 1


Submit = Callable[[Port, AgentCall, float], Finisher]


def submit(port: Port, call: AgentCall, timeout_s: float) -> Finisher:
    return port.start(call, timeout_s)


def run_race(race: ReadRace, now: Callable[[], float], submit: Submit = submit) -> None:
    """For blocking shells. When it returns no call is under way: all memory is quiet."""
    began = now()
    running: dict[int, AwaitedCall] = {}

    def start(numbers: Iterable[int]) -> None:
        at_once: dict[int, Finisher] = {}
        for number in numbers:
            port, call, _, _ = race.entries[number]
            finisher = submit(port, call, race.timeout_s(now() - began, number))
            if isinstance(finisher, AwaitedCall):
                running[number] = finisher
            else:
                at_once[number] = finisher
        for number, finisher in at_once.items():
            race.ended(number, finisher(), now() - began)

    try:
        start(range(race.firsts))
        while not race.over:
            start(race.begin(now() - began))
            for number in list(running):
                # One after the other is slept on, without a spin and without the interpreter.
                if not race.over and running[number].wait(_slice_s(race, now() - began)):
                    race.ended(number, running[number](), now() - began)
                    del running[number]
    finally:
        for call in running.values():
            call.cancel()
        for call in running.values():
            call()


def _slice_s(race: ReadRace, elapsed_s: float) -> float:
    """How long one call may be slept on: until something is to be begun; while two compete, in
    turns."""
    if len(race.entries) > race.firsts:
        return SLICE_S
    due_s = race.next_due_s()
    return WHOLE_S if due_s is None else max(SLICE_S, due_s - elapsed_s)


def own_memory(sizes: Sequence[int]) -> list[memoryview]:
    """A piece of each size, of one allocation; there is at least one."""
    ends = list(accumulate(sizes))
    memory = np.empty(ends[-1], np.uint8).data
    return [memory[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def copy_whole(source: Buffer, size: int, target: Buffer) -> bool:
    """The object's bytes into the caller's buffer. False: it is too small."""
    if memoryview(target).nbytes < size:
        return False
    if size:
        np.frombuffer(target, np.uint8)[:size] = np.frombuffer(source, np.uint8)[:size]
    return True
