"""Tasks: objects copied to a node, moved to it, or given up on it, in bounded portions, while the
master lives. Who asked may be gone; the answer is what became of each key.

A copy more, once it was asked for, is wanted of the object from then on, as if it had been put with
it: repair keeps it up, and nothing trims it. As every copy made by the pool it evicts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from moonpool.core.errors import BadInput, NotReady
from moonpool.pool import messages as m
from moonpool.pool.catalog.base import COMMITTED, GHOST, I32, LEASED, U8, SegmentFacts
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.catalog.copying import COPIES_PER_ORDER, CopyOrder
from moonpool.pool.catalog.segments import Segment
from moonpool.pool.catalog.tasks import TRIES_MAX, Task, TaskBook
from moonpool.pool.columns import pack_keys
from moonpool.pool.master_copies import ORDER_BYTES_MAX, ORDERS_MAX, STEP_S, Copies
from moonpool.pool.master_limits import BATCH_MAX
from moonpool.pool.master_links import Links
from moonpool.pool.master_requests import Asked, batch_keys
from moonpool.pool.message_words import TaskKeyStatus as K
from moonpool.pool.message_words import TaskState as S

KINDS = ("copy", "move", "clear")
DEADLINE_MS_MAX = 86_400_000
NAME_BYTES = 16


class TaskRoom:
    """Looks at what is not settled, a few keys at a time, and has `Copies` do it."""

    def __init__(self, catalog: Catalog, links: Links, copies: Copies, rows_a_step: int) -> None:
        self._catalog = catalog
        self._links = links
        self._copies = copies
        self._rows_a_step = rows_a_step
        self._next_step = 0.0
        self._copy_orders: set[int] = set()
        self.book = TaskBook()
        copies.ended.append(self._came)
        self.ended = 0

    # Calls.

    def handlers(self) -> dict[type[Any], Callable[[Asked, Any], m.Reply | None]]:
        return {m.BeginTask: self.begin, m.AskTask: self.ask, m.ListTasks: self.list_tasks}

    def begin(self, asked: Asked, call: m.BeginTask) -> m.Reply:
        """Raises BadInput."""
        if call.kind not in KINDS or len(call.name) != NAME_BYTES:
            raise BadInput(f"a task of kind {call.kind!r}, named by {len(call.name)} bytes")
        if not 0 < call.deadline_ms <= DEADLINE_MS_MAX:
            raise BadInput(f"a task of {call.deadline_ms} ms; 1 to {DEADLINE_MS_MAX} are possible")
        wanted = {"copy": (True, False), "clear": (False, True)}.get(call.kind)
        if wanted is not None and wanted != (bool(call.target), bool(call.source)):
            raise BadInput("a copy has a target and no source, a clearing has a source only")
        if call.kind == "move" and not call.target:
            raise BadInput("a move has a target")
        if call.target and call.target == call.source:
            raise BadInput(f"a move from {call.target!r} to itself")
        for node in filter(None, (call.target, call.source)):
            if not self._segments_of(node):
                raise BadInput(f"no node {node!r} with memory is known")
        known = self.book.named(call.name)
        if known is not None:
            return self._told(known, asked.now)
        keys = list(dict.fromkeys(batch_keys(call.keys)))
        until = asked.now + call.deadline_ms / 1000
        try:
            task = self.book.begin(
                *(self._catalog.term, call.name, call.kind, call.target, call.source, keys),
                until,
            )
        except NotReady as error:
            return m.Failure(error.code, str(error))
        self._next_step = asked.now
        return self._told(task, asked.now)

    def ask(self, asked: Asked, call: m.AskTask) -> m.TaskIs:
        task = self.book.find(call.id)
        if task is None:
            return m.TaskIs(call.id, self._why_unknown(call.id).value)
        if call.cancel and task.state is S.RUNNING:
            self._end(task, S.CANCELLED, asked.now)
        cursor = min(max(call.cursor, 0), task.total)
        limit = min(max(call.limit, 0), BATCH_MAX)
        told = self._told(task, asked.now)
        if limit == 0:
            return told
        end = min(cursor + limit, task.total)
        return m.TaskIs(
            *(told.id, told.state, told.kind, told.target, told.source),
            *(told.total, told.done, told.failed, told.size, told.left_ms),
            pack_keys(list(task.keys[cursor:end])),
            task.status[cursor:end].tobytes(),
            end if end < task.total else -1,
        )

    def list_tasks(self, asked: Asked, call: m.ListTasks) -> m.Tasks:
        return m.Tasks([self._told(task, asked.now) for task in self.book])

    def _told(self, task: Task, now: float) -> m.TaskIs:
        left_s = max(0.0, task.until - now) if task.state is S.RUNNING else 0.0
        return m.TaskIs(
            *(task.id, task.state.value, task.kind, task.target, task.source),
            *(task.total, task.done, task.failed, task.size, int(left_s * 1000)),
        )

    def _why_unknown(self, id_: str) -> S:
        """A number of an earlier term was given out by a master that is gone, or led before."""
        term, _, number = id_.partition("-")
        if not (term.isascii() and term.isdigit() and number.isascii() and number.isdigit()):
            raise BadInput(f"{id_!r} is no task's id")
        return S.LOST if int(term) < self._catalog.term else S.UNKNOWN

    # Steps.

    def next_deadline(self) -> float | None:
        return self._next_step if self.book.running else None

    def tick(self, now: float, wall_ms: int) -> None:
        if now < self._next_step:
            return
        self._next_step = now + STEP_S
        self.book.forget_old(now)
        self._copy_orders = {one.number for one in self._catalog.copying} & self._copy_orders
        running = self.book.running
        share = max(1, self._rows_a_step // max(1, len(running)))
        for task in running:
            if now >= task.until:
                self._end(task, S.EXPIRED, now)
                continue
            places = task.next_waiting(share)
            rows = self._find([task.keys[place] for place in places])
            found = zip(places, rows.tolist(), strict=True)
            self._order(task, [one for one in found if self._look(task, *one)], now)
            if task.settled:
                self._end(task, S.DONE, now)

    def _end(self, task: Task, state: S, now: float) -> None:
        rest = {S.CANCELLED: K.CANCELLED, S.EXPIRED: K.EXPIRED}.get(state, K.FAILED)
        if state is S.EXPIRED and task.without_room:
            rest = K.NO_ROOM
        task.end(state, rest, now)
        self.ended += 1

    def _find(self, keys: list[bytes]) -> I32:
        column = pack_keys(keys)
        rows: I32 = self._catalog.table.find(column.blob, np.frombuffer(column.ends, np.uint32))
        return rows

    def _look(self, task: Task, place: int, row: int) -> bool:
        """Settle a key, as far as it is. Whether it needs an order."""
        table = self._catalog.table
        if row < 0 or table.state[row] == GHOST:
            task.settle(place, K.ABSENT)
            return False
        if table.state[row] != COMMITTED:
            return False  # being written: it is waited for
        one = np.array([row], np.int32)
        if self._catalog.copying.open(one)[0]:
            return False
        _, replicas = table.replicas_of(one)
        held = {int(table.replica_segment[r]): int(r) for r in replicas.tolist()}
        size = int(table.size[row])
        if task.kind == "clear":
            self._clear(task, place, row, held)
        elif any(segment in held for segment in self._segments_of(task.target)):
            self._arrived(task, place, row, held, size)
        elif task.kind == "move" and task.source and not self._here(task.source, held):
            task.settle(place, K.ABSENT)
        elif task.tries[place] >= TRIES_MAX:
            task.settle(place, K.FAILED)
        else:
            return task.kind == "copy" or not table.flags[row] & LEASED
        return False

    def _arrived(self, task: Task, place: int, row: int, held: dict[int, int], size: int) -> None:
        """There is a copy at the target. A move is over when its source's copy is gone, too; that
        is given up once no lease is on it."""
        source = int(task.sources[place])
        gone = [held[source]] if source in held else []
        if task.kind == "move" and task.source:
            gone = [held[segment] for segment in self._here(task.source, held)]
        if task.kind == "move" and gone:
            if self._catalog.table.flags[row] & LEASED:
                return
            self._copies.give_away(np.array(gone, np.int32))
            task.settle(place, K.DONE, size)
            return
        ours = task.tries[place] > 0
        task.settle(place, K.DONE if ours else K.ALREADY, size if ours else 0)

    def _clear(self, task: Task, place: int, row: int, held: dict[int, int]) -> None:
        table, segments = self._catalog.table, self._catalog.segments
        here = self._here(task.source, held)
        if not here:
            task.settle(place, K.ALREADY)
        elif not any(segments[segment].alive for segment in held if segment not in here):
            task.settle(place, K.LAST)
        elif not table.flags[row] & LEASED:
            left = sum(not segments[segment].below for segment in held) - len(here)
            table.wanted[row] = max(1, min(int(table.wanted[row]), left))
            self._copies.give_away(np.array([held[segment] for segment in here], np.int32))
            task.settle(place, K.DONE, int(table.size[row]))

    def _here(self, node: str, held: dict[int, int]) -> list[int]:
        return [segment for segment in self._segments_of(node) if segment in held]

    def _segments_of(self, node: str) -> list[int]:
        """A node's memory."""
        return [
            link.segment.id
            for link in self._links
            if link.endpoint.node == node and not link.segment.below
        ]

    # Orders.

    def _order(self, task: Task, found: list[tuple[int, int]], now: float) -> None:
        """Have copies made of these (place, row), as far as there is room and a turn."""
        table, copying = self._catalog.table, self._catalog.copying
        groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
        taken: dict[int, int] = {}
        sizes: dict[tuple[int, int], int] = {}
        task.without_room = False
        for place, row in found:
            size = int(table.size[row])
            source = self._source(task, row)
            target = self._target(task, row, size, taken)
            if target is None:
                task.without_room = True
            if source is None or target is None:
                continue
            pair = (source.id, target.segment)
            mine = groups.get(pair, [])
            if len(mine) >= COPIES_PER_ORDER or (mine and sizes[pair] + size > ORDER_BYTES_MAX):
                continue
            if not mine and copying.within_memory + len(groups) >= ORDERS_MAX:
                break
            groups.setdefault(pair, []).append((place, row))
            sizes[pair] = sizes.get(pair, 0) + size
            taken[target.segment] = taken.get(target.segment, 0) + size
        for (source_id, target_id), members in groups.items():
            self._send(task, source_id, target_id, members, now)

    def _send(
        self, task: Task, source: int, target: int, members: list[tuple[int, int]], now: float
    ) -> None:
        rows = np.array([row for _, row in members], np.int32)
        copy = task.kind == "copy"
        number = self._copies.order(source, target, rows, not copy, now, more=int(copy))
        if number == 0:
            return
        if copy:
            self._copy_orders.add(number)
        for place, _ in members:
            task.tries[place] += 1
            task.sources[place] = source

    def _came(self, order: CopyOrder, status: U8, kept: I32, now: float, wall_ms: int) -> None:
        """At once, before anybody finds that there is a copy too many."""
        if order.number not in self._copy_orders:
            return
        self._copy_orders.discard(order.number)
        wanted = self._catalog.table.wanted
        wanted[kept] = np.minimum(wanted[kept] + 1, m.REPLICAS_MAX)
        self._catalog.rows.several |= kept.size > 0

    def _source(self, task: Task, row: int) -> Segment | None:
        if not task.source:
            return self._catalog.copying.source_of(row)
        table, segments = self._catalog.table, self._catalog.segments
        _, replicas = table.replicas_of(np.array([row], np.int32))
        mine = set(self._segments_of(task.source))
        numbers = [n for n in table.replica_segment[replicas].tolist() if n in mine]
        return next((segments[n] for n in numbers if segments[n].alive), None)

    def _target(
        self, task: Task, row: int, size: int, taken: dict[int, int]
    ) -> SegmentFacts | None:
        """The node's segment with most room, if it is enough."""
        fits = [
            one
            for one in self._catalog.facts(int(self._catalog.table.tenant[row]))
            if one.node == task.target
            and one.free_slots > 0
            and one.free_bytes - taken.get(one.segment, 0) >= size
        ]
        return max(fits, key=lambda one: one.free_bytes - taken.get(one.segment, 0), default=None)
