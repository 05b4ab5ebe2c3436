"""Which nodes are heard. A segment's replicas are readable while its node is; the lease on an agent
counts from the last acknowledgement it was sent, and once it has surely passed nobody can read
that memory.
"""

from __future__ import annotations

from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.master_agents import Agents
from moonpool.pool.master_links import Links, LinkState, NodeLink
from moonpool.pool.master_orders import RetireOrders

FORGET_ROWS = 32_768  # replicas of a forgotten node dropped at one time


class Presence:
    """Loss and return of nodes. `lease_s`: how long an agent may serve without being heard."""

    def __init__(
        self,
        catalog: Catalog,
        links: Links,
        agents: Agents,
        orders: RetireOrders,
        lease_s: float,
        forget_after_s: float,
    ) -> None:
        self._catalog = catalog
        self._links = links
        self._agents = agents
        self._orders = orders
        self._forget_after_s = forget_after_s
        self.lease_s = lease_s

    def heard(self, link: NodeLink, now: float) -> None:
        link.lease_until = now + self.lease_s
        link.reported_at = now
        if not link.segment.alive:
            self._catalog.segments.set_alive(link.segment, True)

    def back(self, link: NodeLink, wall_ms: int) -> None:
        link.lost = False
        self._say("back", link, wall_ms)
        if link.state is LinkState.LIVE:
            link.segment.open = True
        self._links.changed()

    def session_lost(self, session: int, now: float) -> None:
        for link in self._links:
            if link.session == session:
                self.detach(link, now)
                self._links.changed()

    def detach(self, link: NodeLink, now: float) -> None:
        link.session = None
        link.state = LinkState.AWAY
        link.progress = link.restore = None
        self._away(link, now)

    def _away(self, link: NodeLink, now: float) -> None:
        link.away_since = now
        self._catalog.segments.set_alive(link.segment, False)
        self._agents.bury_missed(link.segment.id, now)

    def tick(self, now: float, wall_ms: int, sure: bool = True) -> None:
        """`sure`: no other master can have renewed the lease of a node that is away from here."""
        obeying: int | None = None  # counted once: all nodes may be lost at the same time
        for link in self._links:
            link.segment.settle(now, float("-inf"))
            link.segment.breaker.settle(now)
            if not link.lost and link.lease_until <= now:
                self._lost(link, now, wall_ms)
            if link.lost and sure:
                if obeying is None:
                    obeying = self._links.obeying()
                remembered = self._links.remembered_without(link, obeying)
                unheard = self._orders.lease_passed(link.segment.id, remembered)
                self._agents.unheard.add(link.segment.id, unheard)
                if link.away_since + self._forget_after_s <= now:
                    self._forget(link, now, wall_ms)
        self._agents.forget_tombs(self._agents.tombstones.expire(now))

    def _lost(self, link: NodeLink, now: float, wall_ms: int) -> None:
        link.lost = True
        if link.session is not None:
            self._away(link, now)
        self._say("lost", link, wall_ms)
        self._links.changed()

    def _say(self, what: str, link: NodeLink, wall_ms: int) -> None:
        events, node = self._catalog.events, link.endpoint.node
        if link.segment.below:
            events.add(f"tier_{what}", node, wall_ms, link.segment.medium)
        else:
            events.add(f"node_{what}", node, wall_ms)

    def _forget(self, link: NodeLink, now: float, wall_ms: int) -> None:
        """Away for too long: what only this node held is gone."""
        self._agents.unheard.reported(link.segment.id)
        held = link.segment.by_slot[link.segment.by_slot >= 0][:FORGET_ROWS]
        if held.size:
            self._catalog.rows.lose_replicas(held, wall_ms, now)

    def next_deadline(self) -> float | None:
        moments = []
        for link in self._links:
            if not link.lost:
                moments.append(link.lease_until)
            elif link.segment.objects:
                moments.append(link.away_since + self._forget_after_s)
            if link.segment.breaker.tripped:
                moments.append(link.segment.breaker.until)
            if link.segment.late:
                moments.append(link.segment.late[0].until)
        return min(moments, default=None)
