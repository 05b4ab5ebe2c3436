"""Tasks that outlive who asked for them: copies, moves and clearings of named keys. Pure.

A task is its keys and what became of each. It ends by itself: every key is settled, or its deadline
passes, or it is cancelled. The book of them is bounded: tasks that run are few, ended ones are kept
for a while and the oldest go first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from moonpool.core.errors import NotReady
from moonpool.pool.catalog.base import I32, U8, U64
from moonpool.pool.message_words import TaskKeyStatus as K
from moonpool.pool.message_words import TaskState as S

RUNNING_MAX = 64
TASKS_MAX = 256
KEYS_MAX = 1 << 20  # of all tasks in the book
KEPT_S = 600.0  # after its end
TRIES_MAX = 3  # orders for one key that came to nothing
WELL = (K.DONE, K.ALREADY)


@dataclass(slots=True)
class Task:
    """`target` and `source` are nodes; `source` empty: whichever copy is best to read."""

    number: int
    term: int
    name: bytes  # drawn by who asks, so that asking twice begins one task
    kind: str  # copy, move or clear
    target: str
    source: str
    keys: Sequence[bytes]
    until: float
    status: U8
    tries: U8
    sizes: U64
    sources: I32  # segment that an ordered move takes its copy from, -1: none ordered yet
    state: S = S.RUNNING
    cursor: int = 0
    ended_at: float = 0.0
    without_room: bool = False

    @property
    def id(self) -> str:
        return f"{self.term}-{self.number}"

    @property
    def total(self) -> int:
        return len(self.keys)

    @property
    def done(self) -> int:
        return int(np.isin(self.status, WELL).sum())

    @property
    def failed(self) -> int:
        return int((self.status != K.WAITING).sum()) - self.done

    @property
    def size(self) -> int:
        """Bytes of the objects that it copied, moved or cleared."""
        return int(self.sizes[self.status == K.DONE].sum())

    @property
    def settled(self) -> bool:
        return not (self.status == K.WAITING).any()

    def next_waiting(self, most: int) -> list[int]:
        """Keys that are not settled, from where the last look ended: all have their turn."""
        places = np.flatnonzero(self.status == K.WAITING)
        if places.size > most:
            start = int(np.searchsorted(places, self.cursor))
            places = np.concatenate([places[start:], places[:start]])[:most]
            self.cursor = int(places[-1]) + 1
        chosen: list[int] = places.tolist()
        return chosen

    def settle(self, place: int, status: K, size: int = 0) -> None:
        self.status[place] = status
        self.sizes[place] = size

    def end(self, state: S, rest: K, now: float) -> None:
        """What is not settled becomes `rest`."""
        self.status[self.status == K.WAITING] = rest
        self.state, self.ended_at = state, now


class TaskBook:
    """Every task that runs, and those that ended lately."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._named: dict[bytes, str] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(list(self._tasks.values()))

    @property
    def running(self) -> list[Task]:
        return [task for task in self._tasks.values() if task.state is S.RUNNING]

    def find(self, id_: str) -> Task | None:
        return self._tasks.get(id_)

    def named(self, name: bytes) -> Task | None:
        return self._tasks.get(self._named.get(name, ""))

    def begin(
        self,
        term: int,
        name: bytes,
        kind: str,
        target: str,
        source: str,
        keys: Sequence[bytes],
        until: float,
    ) -> Task:
        """Raises NotReady when too many run, or too many keys are kept."""
        if len(self.running) >= RUNNING_MAX:
            raise NotReady(f"{RUNNING_MAX} tasks run already; wait for one, or cancel one")
        self._make_room(len(keys))
        count = len(keys)
        task = Task(
            *(self._next, term, name, kind, target, source, keys, until),
            status=np.zeros(count, np.uint8),
            tries=np.zeros(count, np.uint8),
            sizes=np.zeros(count, np.uint64),
            sources=np.full(count, -1, np.int32),
        )
        self._next += 1
        self._tasks[task.id] = task
        self._named[name] = task.id
        return task

    def forget_old(self, now: float) -> None:
        for task in self:
            if task.state is not S.RUNNING and now - task.ended_at >= KEPT_S:
                self._forget(task)

    def _make_room(self, keys: int) -> None:
        ended = [task for task in self._tasks.values() if task.state is not S.RUNNING]
        kept = sum(task.total for task in self._tasks.values())
        for task in sorted(ended, key=lambda one: one.ended_at):
            if len(self._tasks) < TASKS_MAX and kept + keys <= KEYS_MAX:
                return
            kept -= task.total
            self._forget(task)
        if kept + keys > KEYS_MAX:
            raise NotReady(f"running tasks hold {kept} keys, {KEYS_MAX} are the most; try later")

    def _forget(self, task: Task) -> None:
        del self._tasks[task.id]
        if self._named.get(task.name) == task.id:
            del self._named[task.name]
