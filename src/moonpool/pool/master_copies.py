"""Repair and drain: the master has agents copy objects from each other, in bounded portions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import msgspec
import numpy as np

from moonpool.core.errors import BadInput
from moonpool.core.sections import MasterConfig
from moonpool.pool import messages as m
from moonpool.pool.catalog.base import COMMITTED, I32, LEASED, U8, Bool, Expiry
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.catalog.copying import COPIES_PER_ORDER, CopyOrder
from moonpool.pool.catalog.distinct import distinct
from moonpool.pool.catalog.placement import one_more
from moonpool.pool.catalog.segments import Segment
from moonpool.pool.columns import u8, u32, u64
from moonpool.pool.effects import Effect, Send
from moonpool.pool.master_agents import Agents
from moonpool.pool.master_limits import LIST_ROWS
from moonpool.pool.master_links import Links, LinkState, NodeLink
from moonpool.pool.master_removals import Removals
from moonpool.pool.master_requests import Asked

ORDERS_MAX = 8  # open at a time
ORDER_BYTES_MAX = 32 << 20  # of one order, if it is not one object
ORDER_S = 10.0
STEP_S = 0.1
STUCK_S = 0.5
Ended = Callable[[CopyOrder, U8, I32, float, int], None]


class Copies:
    """Looks through the catalog for objects with too few copies, and empties drained segments."""

    def __init__(
        self,
        config: MasterConfig,
        catalog: Catalog,
        links: Links,
        agents: Agents,
        removals: Removals,
        outbox: list[Effect],
        rows_a_step: int,
        seed: int,
    ) -> None:
        self._delay_s = config.repair_delay_s
        self._catalog = catalog
        self._links = links
        self._agents = agents
        self._removals = removals
        self._outbox = outbox
        self._rows_a_step = rows_a_step  # looked at one by one
        self._random = random.Random(seed)
        self._cursor = 0
        self._next_step = 0.0
        self._looked_at: dict[int, int] = {}  # by segment that is drained: places passed over
        self._draining: set[str] = set()  # nodes
        self._leaving: set[int] = set()  # segments
        self.ended: list[Ended] = []  # told of orders that were answered

    # Drain.

    def drain(self, asked: Asked, call: m.Drain) -> m.Done:
        """Answers how many copies are still on the node's segments."""
        mine = [link.segment for link in self._links if link.endpoint.node == call.node]
        if not mine:
            raise BadInput(f"no node {call.node!r} is known")
        (self._draining.discard if call.stop else self._draining.add)(call.node)
        for segment in mine:
            segment.draining = not call.stop or segment.id in self._leaving
        self._next_step = asked.now
        return m.Done(sum(segment.objects for segment in mine))

    def leaving(self, session: int, call: m.Leaving, now: float, wall_ms: int) -> None:
        """A node gives back one of its segments. While it has objects they are moved, to its other
        segments as to those of others; gone, it is no part of the pool any more."""
        link = self._links.spoken_for(session, call.segment, call.term)
        if link is None and call.what == "gone":  # this master stands by
            link = self._links.followed(session, call.segment)
        if link is None:
            return
        self._next_step = now
        segment = link.segment
        if call.what == "gone":
            self._gone(link, now, wall_ms)
            return
        (self._leaving.add if call.what == "leave" else self._leaving.discard)(segment.id)
        segment.draining = self._drains(link)

    def given_back(
        self, node: str, incarnations: Iterable[bytes], now: float, wall_ms: int
    ) -> None:
        """These of a node's segments went, perhaps while it was not heard here."""
        for incarnation in incarnations:
            segment = self._catalog.segments.find(incarnation)
            if segment is not None and not segment.gone:
                link = self._links[segment.id]
                if link.endpoint.node == node:
                    self._gone(link, now, wall_ms)

    def _gone(self, link: NodeLink, now: float, wall_ms: int) -> None:
        segment = link.segment
        self._leaving.discard(segment.id)
        held = segment.by_slot[segment.by_slot >= 0]
        self._catalog.lose(held, now, wall_ms)
        link.session, link.state, link.lost = None, LinkState.AWAY, True
        link.progress = link.restore = None
        link.away_since, segment.gone = now, True
        self._catalog.segments.set_alive(segment, False)
        self._removals.gone(segment.id)
        self._links.changed()

    def _drains(self, link: NodeLink) -> bool:
        return link.endpoint.node in self._draining or link.segment.id in self._leaving

    # Steps.

    def tick(self, now: float, wall_ms: int) -> None:
        for order in self._catalog.copying:
            if order.until <= now or not self._reachable(order):
                self._give_up(order)
        if now < self._next_step:
            return
        self._next_step = now + STEP_S
        if not self._busy:
            return
        for link in self._links:
            link.segment.draining = self._drains(link)
        for segment in self._catalog.segments:
            if segment.draining and segment.alive and segment.objects:
                self._empty(segment, now)
        self._follow_heat(now)
        if self._catalog.rows.several:
            self._repair(now)

    def _follow_heat(self, now: float) -> None:
        heat, copying = self._catalog.rows.heat, self._catalog.copying
        cooled = heat.cooled(now, lambda row: not self._settled(np.array([row], np.int32))[0])
        if cooled.size:
            self._trim(cooled)
        present = self._present(now)
        for row, host in heat.hot():
            counts = copying.present_copies(np.array([row], np.int32), present)
            if copying.within_memory < ORDERS_MAX and counts[0] == self._catalog.table.wanted[row]:
                rows = np.array([row], np.int32)
                if not copying.open(rows)[0]:
                    self._copy(rows, now, None, host)

    @property
    def _busy(self) -> bool:
        rows = self._catalog.rows
        return bool(self._draining or self._leaving) or rows.several or len(rows.heat) > 0

    def next_deadline(self) -> float | None:
        if self._busy or len(self._catalog.copying):
            return self._next_step
        return None

    def _reachable(self, order: CopyOrder) -> bool:
        return order.source.alive and order.target.alive

    def _give_up(self, order: CopyOrder) -> None:
        self._catalog.copying.failed += order.rows.size
        self._catalog.copying.end(order)
        for term in np.unique(order.terms).tolist():
            of_term = order.sequences[order.terms == term]
            self._agents.expire([Expiry(order.target.id, term, of_term)])

    def cancel_all(self) -> None:
        """A new term: what the agents seal of the old orders they are told to retire."""
        for order in self._catalog.copying:
            self._give_up(order)

    # Repair.

    def _present(self, now: float) -> Bool:
        """Segments whose copies count: memory, alive or away for a short while only, and not
        drained."""
        present = np.zeros(len(self._catalog.segments), np.bool_)
        for link in self._links:
            near = link.segment.alive or now - link.away_since < self._delay_s
            link_counts = near and not link.segment.draining and not link.segment.below
            present[link.segment.id] = link_counts
        return present

    def _repair(self, now: float) -> None:
        copying = self._catalog.copying
        if copying.within_memory >= ORDERS_MAX:
            return
        rows, cursor = self._catalog.scan(self._cursor, LIST_ROWS, b"")
        few, many = copying.lacking(rows, self._present(now))
        few = few[~copying.open(few)][: self._rows_a_step]
        many = many[self._settled(many)][: self._rows_a_step]
        if many.size:
            self._trim(many)
        if few.size and self._copy(few, now, None) or many.size == self._rows_a_step:
            return  # there may be more in this window
        self._cursor = max(cursor, 0)
        if cursor < 0:
            self._next_step = now + max(STEP_S, self._delay_s / 4)

    def _settled(self, rows: I32) -> Bool:
        """Which of these rows may lose a copy: not being copied, and under no lease."""
        settled: Bool = ~self._catalog.copying.open(rows)
        settled &= (self._catalog.table.flags[rows] & LEASED) == 0
        return settled

    def _trim(self, rows: I32) -> None:
        """One copy less of each that has too many: its node was away, and is back; or it is read
        less. One goes whose failure domain has another, from where there is least room."""
        table, segments = self._catalog.table, self._catalog.segments
        alive = segments.alive
        surplus = []
        for row in rows.tolist():
            _, replicas = table.replicas_of(np.array([row], np.int32))
            here = [r for r in replicas.tolist() if alive[table.replica_segment[r]]]
            here = [r for r in here if not segments[int(table.replica_segment[r])].below]
            if len(here) > table.wanted[row]:
                homes = [segments[int(table.replica_segment[r])] for r in here]
                domains = [one.domain for one in homes]
                ranks = [(domains.count(one.domain) == 1, one.free_bytes) for one in homes]
                surplus.append(here[ranks.index(min(ranks))])
        self.give_away(np.array(surplus, np.int32))

    def give_away(self, replicas: I32) -> None:
        """Of objects that have others. Who remembers one may read it until its agent has heard: a
        new value of the key waits for that."""
        table = self._catalog.table
        rows = distinct(table.replica_object[replicas])
        keys = [table.key(row) for row in rows.tolist()]
        self._removals.follow(self._catalog.rows.take_replicas(replicas), keys)

    def _empty(self, segment: Segment, now: float) -> None:
        table, copying = self._catalog.table, self._catalog.copying
        held = segment.by_slot[segment.by_slot >= 0]
        start = self._looked_at.get(segment.id, 0) % held.size
        held = np.concatenate([held[start:], held[:start]])[: self._rows_a_step]
        rows = table.replica_object[held]
        ready = (table.state[rows] == COMMITTED) & self._settled(rows)
        rows, held = rows[ready], held[ready]
        present = self._present(now)
        counts = np.array([self._others(row, segment, present) for row in rows.tolist()])
        enough = counts >= np.maximum(table.wanted[rows], 1) if rows.size else ready[:0]
        if enough.any():
            self.give_away(held[enough])
        moved = int(enough.sum())
        if (~enough).any() and self._open_orders(segment) < ORDERS_MAX:
            moved += self._copy(rows[~enough], now, segment)
        if moved == 0 and not len(copying):
            # Nothing of these can go now: others, and not at once.
            self._looked_at[segment.id] = start + self._rows_a_step
            self._next_step = now + STUCK_S

    def _others(self, row: int, segment: Segment, present: Bool) -> int:
        table = self._catalog.table
        _, replicas = table.replicas_of(np.array([row], np.int32))
        numbers = table.replica_segment[replicas]
        return int((present[numbers] & (numbers != segment.id)).sum())

    def _copy(self, rows: I32, now: float, moved_from: Segment | None, host: str = "") -> int:
        """Orders for as many of these rows as there is room for, elsewhere and on the way; how
        many orders."""
        table, copying = self._catalog.table, self._catalog.copying
        groups: dict[tuple[int, int], list[int]] = {}
        sizes: dict[tuple[int, int], int] = {}
        taken: dict[int, int] = {}
        for row in rows.tolist():
            source = moved_from or copying.source_of(row)
            if source is None:
                continue
            size = int(table.size[row])
            target = self._target(row, size, taken, host, moved_from)
            if target is None:
                continue
            pair = (source.id, target)
            full = sizes.get(pair, 0) + size > ORDER_BYTES_MAX and pair in groups
            if full or len(groups.get(pair, ())) >= COPIES_PER_ORDER:
                continue
            if pair not in groups and self._open_orders(moved_from) + len(groups) >= ORDERS_MAX:
                continue
            groups.setdefault(pair, []).append(row)
            sizes[pair] = sizes.get(pair, 0) + size
            taken[target] = taken.get(target, 0) + size
        for (number, target), mine in groups.items():
            self.order(number, target, np.array(mine, np.int32), moved_from is not None, now)
        return len(groups)

    def _open_orders(self, moved_from: Segment | None) -> int:
        """Those that the next one has to wait for: memory does not wait for tiers."""
        copying = self._catalog.copying
        below = moved_from is not None and moved_from.below
        return len(copying) if below else copying.within_memory

    def _target(
        self, row: int, size: int, taken: dict[int, int], host: str, moved_from: Segment | None
    ) -> int | None:
        """Another node's segment, in a failure domain of its own if there is room in one; for who
        is to read it, `host`, near comes before that."""
        without = -1 if moved_from is None else moved_from.id
        homes = self._catalog.copying.homes_of(row, without)
        nodes, domains = {one.node for one in homes}, {one.domain for one in homes if one.alive}
        facts = [
            one._replace(free_bytes=one.free_bytes - taken.get(one.segment, 0))
            for one in self._catalog.facts(int(self._catalog.table.tenant[row]))
            if one.node not in nodes
        ]
        placement, draw = self._catalog.placement, self._random.random()
        return one_more(placement, facts, () if host else domains, size, host, draw)

    def order(
        self, source: int, target: int, rows: I32, move: bool, now: float, more: int = 0
    ) -> int:
        """Have `target`'s agent fetch these rows (each once): there is room for them. Slots there
        say `more` wanted copies than before. The order's number, 0: that agent takes none."""
        table, segments = self._catalog.table, self._catalog.segments
        link = self._links[target]
        if link.session is None or not link.obeys:
            return 0
        copying = self._catalog.copying
        order = copying.begin(segments[source], segments[target], rows, move, now + ORDER_S)
        replicas = copying.replicas_on(segments[source], rows)
        blob, ends = table.keys(rows)
        parents, parent_ends = table.parent_keys(rows)
        endpoint = msgspec.structs.replace(self._links[source].endpoint, segment=source)
        message = m.Copy(
            order.number,
            target,
            self._catalog.term,
            endpoint,
            table.replica_slot[replicas].tobytes(),
            table.replica_generation[replicas].tobytes(),
            order.terms.tobytes(),
            order.sequences.tobytes(),
            table.size[rows].tobytes(),
            table.crc[rows].tobytes(),
            table.tenant[rows].tobytes(),
            table.expiry_ms[rows].tobytes(),
            np.minimum(table.wanted[rows] + more, m.REPLICAS_MAX).astype(np.uint8).tobytes(),
            table.pin[rows].tobytes(),
            m.KeyColumn(blob, ends.tobytes()),
            m.KeyColumn(parents, parent_ends.tobytes()),
        )
        self._outbox.append(Send(link.session, 0, message))
        return order.number

    def copied(self, session: int, call: m.Copied, now: float, wall_ms: int) -> None:
        link = self._links.get(call.segment)
        order = self._catalog.copying.find(call.id)
        if link is None or link.session != session or order is None:
            return
        status, slots, generations = u8(call.status), u32(call.slot), u64(call.generation)
        if order.target.id != call.segment or not (
            order.rows.size == status.size == slots.size == generations.size
        ):
            raise BadInput(f"copied: {status.size} of {order.rows.size} objects")
        self._catalog.copying.end(order)
        stale, replaced = self._catalog.copying.take(order, status == 0, slots, generations)
        self._agents.retire(stale)
        self.give_away(replaced)
        kept = self._catalog.copying.replicas_on(order.target, order.rows)
        for told in self.ended:
            told(order, status, self._catalog.table.replica_object[kept], now, wall_ms)
        self._next_step = min(self._next_step, now)
