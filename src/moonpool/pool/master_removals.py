"""Removals: answered when no agent serves the removed bytes any more, or when time is up."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from moonpool.core.errors import BadInput
from moonpool.pool import messages as m
from moonpool.pool.catalog.base import Retirement
from moonpool.pool.catalog.catalog import Catalog, Removal
from moonpool.pool.master_agents import NO_GENERATIONS, NO_SLOTS, Agents
from moonpool.pool.master_limits import LIST_ROWS, wait_until
from moonpool.pool.master_links import Links
from moonpool.pool.master_orders import RetireOrders, RetireWait
from moonpool.pool.master_requests import Asked, batch_ends, batch_keys


class Removals:
    """What is taken away on purpose, and who waits for it to be gone.

    `strangers(now)` says whether there may be nodes that this master has not heard of.
    """

    def __init__(
        self,
        catalog: Catalog,
        links: Links,
        agents: Agents,
        orders: RetireOrders,
        strangers: Callable[[float], bool],
    ) -> None:
        self._catalog = catalog
        self._links = links
        self._agents = agents
        self._orders = orders
        self._strangers = strangers

    @property
    def waiting(self) -> bool:
        """Some agent has not yet confirmed what it was told to retire."""
        return len(self._orders) > 0

    @property
    def full(self) -> bool:
        """So many calls wait for their nodes that no other may."""
        return self._orders.full

    def concern(self, keys: Iterable[bytes]) -> bool:
        return self._orders.concern(keys)

    def gone(self, segment: int) -> None:
        """Nobody can read there any more, nor come back with it: nothing is waited for."""
        self._orders.lease_passed(segment, True)

    def refused(self) -> None:
        self._orders.refused += 1

    def remove(self, asked: Asked, call: m.Remove) -> m.Failure | None:
        if self._orders.full:
            return self._refuse()
        removed, removals, retirements = self._catalog.remove(
            call.keys.blob, batch_ends(call.keys), asked.now, asked.wall_ms
        )
        status = np.where(removed, m.RemoveStatus.REMOVED, m.RemoveStatus.ABSENT).astype(np.uint8)
        where = {one.key: set(one.segments) for one in removals}
        names = batch_keys(call.keys)

        def late(segments: set[int]) -> m.Reply:
            pending = status.copy()
            for i, key in enumerate(names):
                if where.get(key, set()) & segments:
                    pending[i] = m.RemoveStatus.PENDING
            return m.Removed(pending.tobytes(), self._links.names(segments))

        deadline = wait_until(asked.now, call.wait_ms)
        done = m.Removed(status.tobytes())
        wait = RetireWait(asked.session, asked.request, deadline, done, late)
        self.wait_for(retirements, removals, wait, asked.now, also=names)
        return None

    def remove_prefix(self, asked: Asked, call: m.RemovePrefix) -> m.Failure | None:
        if self._orders.full:
            return self._refuse()
        removals: list[Removal] = []
        retirements: list[Retirement] = []
        cursor = 0
        while cursor >= 0:
            rows, cursor = self._catalog.scan(cursor, LIST_ROWS, call.prefix, asked.visitor.only)
            if rows.size:
                some, more = self._catalog.remove_rows(rows, asked.now, asked.wall_ms)
                removals += some
                retirements += more
        done = m.Done(len(removals))
        deadline = wait_until(asked.now, call.wait_ms)
        wait = RetireWait(asked.session, asked.request, deadline, done, lambda _: done)
        self.wait_for(retirements, removals, wait, asked.now)
        return None

    def remove_where(self, asked: Asked, call: m.RemoveWhere) -> m.Reply | None:
        """Among the next LIST_ROWS rows: a bounded step."""
        if self._orders.full and not call.look:
            return self._refuse()
        if call.size_min < 0 or call.size_max < call.size_min:
            raise BadInput(f"sizes from {call.size_min} to {call.size_max}")
        table = self._catalog.table
        cursor = min(max(call.cursor, 0), table.rows_max)
        rows, cursor = self._catalog.scan(cursor, LIST_ROWS, call.prefix, asked.visitor.only)
        sizes = table.size[rows]
        rows = rows[(sizes >= call.size_min) & (sizes <= call.size_max)]
        if call.contains or call.suffix:
            keys = [asked.visitor.own(table.key(row)) for row in rows.tolist()]
            fits = [call.contains in key and key.endswith(call.suffix) for key in keys]
            rows = rows[np.array(fits, np.bool_)]
        done = m.RemovedWhere(rows.size, int(table.size[rows].sum()), cursor)
        if call.look or rows.size == 0:
            return done
        removals, retirements = self._catalog.remove_rows(rows, asked.now, asked.wall_ms)
        deadline = wait_until(asked.now, call.wait_ms)
        wait = RetireWait(asked.session, asked.request, deadline, done, lambda _: done)
        self.wait_for(retirements, removals, wait, asked.now)
        return None

    def _refuse(self) -> m.Failure:
        self.refused()
        return m.Failure(
            "not_ready",
            f"{self._orders.waits} calls wait for nodes to retire (retire_waits_max); nothing was "
            "removed, try again",
        )

    def follow(self, retirements: list[Retirement], keys: list[bytes]) -> None:
        """These went by themselves (evicted, expired, corrupt). Nobody waits, but a new value of
        one of these keys is not acknowledged while the old one may still be read."""
        for one in retirements:
            number = self._orders.new_unawaited(one.segment, keys)
            self._agents.retire([one], number)
            if self._links[one.segment].lost:
                self._orders.finish(number, one.segment)
                self._agents.unheard.add(one.segment, keys)

    def remove_dead(self, now: float, wall_ms: int) -> None:
        """Another node's inventory may have brought back what new tombstones say is removed."""
        table, covers = self._catalog.table, self._agents.tombstones.covers
        cursor = 0
        while cursor >= 0:
            rows, cursor = self._catalog.scan(cursor, LIST_ROWS, b"")
            gone = [
                row
                for row in rows.tolist()
                if covers(table.key(row), int(table.term[row]), int(table.seq[row]))
            ]
            if gone:
                _, retirements = self._catalog.remove_rows(np.array(gone, np.int32), now, wall_ms)
                self._agents.retire(retirements)

    def wait_for(
        self,
        retirements: list[Retirement],
        removals: list[Removal],
        wait: RetireWait,
        now: float,
        also: Iterable[bytes] = (),
    ) -> None:
        """Answer when every agent has retired, or when its lease has surely passed; for the keys
        `also` named, also when what earlier removals left open is retired."""
        retirements = retirements + self._on_their_way(removals, now)
        missed: set[int] = set()
        for gone in removals:
            missed |= self._orders.removed(gone.key, gone.term, gone.sequence)
            self._agents.supersede(gone.key, gone.term, gone.sequence, now)
        for segment in sorted(missed):
            if not self._links[segment].heard:
                self._agents.bury_missed(segment, now)
        self._orders.join(also, wait)
        joined = bool(wait.orders)
        over = [number for one in retirements if (number := self._order(one, removals, wait, now))]
        # Only now: an answer goes out with the last order, so all of them must have been given.
        for number in over:
            self._orders.finish(number, wait.orders[number])
        if self._strangers(now):
            # A node not heard yet may hold a copy or another value, older or newer, that nobody
            # here knows of: all that was put before this term began is dead.
            term = self._catalog.term
            versions = [
                (gone.key, *max((gone.term, gone.sequence), (term, 0))) for gone in removals
            ]
            self._agents.bury(versions, None, now)
        if wait.orders or not (retirements or joined):
            self._orders.start(wait)

    def _on_their_way(self, removals: list[Removal], now: float) -> list[Retirement]:
        """Copies of these that an agent may have sealed unheard of: they must not come back under
        another master. Each such agent is to answer once it knows, though it has nothing to
        retire yet."""
        targets: set[int] = set()
        for gone in removals:
            mine = self._catalog.copying.targets((gone.term, gone.sequence))
            if mine:
                self._agents.bury([gone[:3]], set(mine), now)
                targets |= mine
        return [Retirement(target, NO_SLOTS, NO_GENERATIONS) for target in sorted(targets)]

    def _order(self, one: Retirement, removals: list[Removal], wait: RetireWait, now: float) -> int:
        """Tell one agent; one that cannot be told is remembered for. The order's number when
        nobody can read that memory any more, so that it need not be waited for; else 0."""
        mine = [
            (gone.key, gone.term, gone.sequence)
            for gone in removals
            if one.segment in gone.segments
        ]
        number = self._orders.new(one.segment, mine, wait)
        self._agents.retire([one], number)
        link = self._links[one.segment]
        if not link.heard:
            self._agents.bury_missed(one.segment, now)
            if link.lost and self._links.remembered_without(link, self._links.obeying()):
                return number
        return 0
