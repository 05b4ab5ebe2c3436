"""What the master says of itself: the counters of `stat`, explained in docs/operations.md."""

from __future__ import annotations

from moonpool.core.tenants import Tenants
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.master_nodes import Nodes
from moonpool.pool.tenancy.shares import Shares
from moonpool.pool.tenancy.usage import Held, Usage

Counters = dict[str, object]


def catalog_counters(catalog: Catalog) -> Counters:
    alive = [segment for segment in catalog.segments if segment.alive and not segment.below]
    return {
        "term": catalog.term,
        "objects": catalog.rows.objects,
        "rows": len(catalog.table),
        "rows_max": catalog.table.rows_max,
        "replicas": catalog.table.replica_count,
        "table_bytes": catalog.table.memory_bytes(),
        "capacity_bytes": sum(one.capacity_bytes for one in alive),
        "committed_bytes": sum(one.committed_bytes for one in alive),
        "promised_bytes": sum(one.promised_bytes for one in alive),
        "reservations": len(catalog.reservations),
        "evictions": catalog.room.evictions,
        "evicted_objects": catalog.room.evicted_objects,
        "futile_evictions": catalog.rows.evictor.futile,
        "futile_skipped": catalog.rows.evictor.futile_skipped,
        "soft_pins": len(catalog.rows.standing),
        "groups": len(catalog.rows.groups),
        "groups_overflowed": catalog.rows.groups.overflowed,
        "hot_objects": len(catalog.rows.heat),
        "copies_open": sum(order.rows.size for order in catalog.copying),
        "copies_made": catalog.copying.copied,
        "copies_failed": catalog.copying.failed,
        "events": len(catalog.events),
        "next_event": catalog.events.next_sequence,
        "leases": len(catalog.leases),
        "tenants": tenant_counters(catalog),
    }


def tenant_counters(catalog: Catalog) -> Counters:
    """By name. Where there are no tenants all belongs to one, which nobody counts apart."""
    shares = catalog.rows.shares
    if shares is not None:
        return dict(shares.stat())
    held = Held(
        committed_bytes=sum(one.committed_bytes for one in catalog.segments),
        objects=catalog.rows.objects,
        promised_bytes=sum(one.promised_bytes for one in catalog.segments),
    )
    alone = Shares(Tenants([]), Usage({0: held}))
    return dict(alone.stat())


def node_counters(nodes: Nodes) -> Counters:
    return {
        "tombstones": len(nodes.agents.tombstones),
        "retired_unknown": nodes.reports.retired_unknown,
        "refused_chunks": nodes.reports.refused_chunks,
        "restored_segments": nodes.restoring.segments,
        "restored_objects": nodes.restoring.objects,
        "distrusted_segments": nodes.restoring.distrusted,
        "topology_version": nodes.links.topology_version,
        "segments": {
            str(link.segment.id): {
                "node": link.endpoint.node,
                "state": link.state.value,
                "medium": link.segment.medium,
                "alive": link.segment.alive,
                "capacity_bytes": link.segment.capacity_bytes,
                "committed_bytes": link.segment.committed_bytes,
                "promised_bytes": link.segment.promised_bytes,
                "late_promises": len(link.segment.late),
                "domain": link.segment.domain or link.segment.host_id,
                "fresh": link.segment.fresh_since is not None,
                "draining": link.segment.draining,
                "resting": link.segment.breaker.tripped,
                "objects": link.segment.objects,
                "usage": link.usage or {},
            }
            for link in nodes.links
        },
    }
