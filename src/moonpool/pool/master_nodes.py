"""The master's side towards its nodes, put together: links, what agents are told, who is heard, who
joins, what is reported.
"""

from __future__ import annotations

from collections.abc import Callable

from moonpool.core.sections import MasterConfig
from moonpool.pool import messages as m
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.effects import Effect
from moonpool.pool.master_agents import Agents
from moonpool.pool.master_joins import Joins
from moonpool.pool.master_links import Links
from moonpool.pool.master_orders import RetireOrders
from moonpool.pool.master_presence import Presence
from moonpool.pool.master_reports import Reports
from moonpool.pool.master_restoring import Restoring
from moonpool.pool.master_standby import Standby
from moonpool.pool.snapshot.saved import Saved
from moonpool.pool.tombstones import Tombstones


class Nodes:
    """Everything between the catalog and the agents."""

    def __init__(
        self,
        config: MasterConfig,
        catalog: Catalog,
        orders: RetireOrders,
        outbox: list[Effect],
        instance: bytes,
        tombstones_max: int,
        term_raised: Callable[[int, float], None],
        standing_by: bool,
        saved: Saved | None = None,
    ) -> None:
        forget_s = config.forget_after_s
        lease_s = (config.node_lease_ms + config.clock_slack_ms) / 1000
        tombstones = Tombstones(tombstones_max, forget_s)
        self.links = Links(catalog, instance)
        self.agents = Agents(catalog, self.links, orders, tombstones, outbox)
        self.presence = Presence(catalog, self.links, self.agents, orders, lease_s, forget_s)
        self.standby = Standby(catalog, self.links, outbox, standing_by)
        self.reports = Reports(catalog, self.links, self.agents, self.presence, outbox)
        self.restoring = Restoring(catalog, self.links, self.reports, outbox, saved)
        self.joins = Joins(
            catalog,
            self.links,
            self.agents,
            self.presence,
            outbox,
            instance,
            config.node_lease_ms,
            config.forget_after_s * 1000,
            term_raised,
            self.standby,
            self.restoring,
        )

    def chunk(self, session: int, call: m.InventoryChunk, now: float, wall_ms: int) -> None:
        take = self.standby.chunk if self.standby.going_on else self.reports.chunk
        take(session, call, now, wall_ms)

    def changed(self, session: int, call: m.Changed, now: float, wall_ms: int) -> None:
        if self.standby.going_on:
            self.standby.changed(session, call, now, wall_ms)
        elif self.restoring.takes(call.segment):
            self.restoring.changed(session, call, now, wall_ms)
        else:
            self.reports.resumed(session, call, now, wall_ms)

    def restore(self, now: float, wall_ms: int) -> None:
        """One piece of a snapshot; call while `restoring.going_on`."""
        for link in self.restoring.step(now, wall_ms):
            self.joins.whole(link, now, wall_ms)
