"""The settings of a master that its catalog goes by."""

from __future__ import annotations

from moonpool.core.sections import MasterConfig
from moonpool.pool.catalog.base import CatalogConfig
from moonpool.pool.master_limits import MasterLimits


def catalog_config(config: MasterConfig, limits: MasterLimits) -> CatalogConfig:
    return CatalogConfig(
        rows_max=config.rows_max,
        segments_max=limits.segments_max,
        reservations_max=limits.reservations_max,
        reservation_ms=config.reservation_ms,
        events_max=config.events_max,
        leases_max=limits.leases_max,
        eviction=config.policy,
        placement=config.placement,
        failure_domain=config.failure_domain,
        slow_start_s=config.slow_start_s,
        hot_reads_per_s=config.hot_reads_per_s,
        hot_hosts=config.hot_hosts,
        cold_after_s=config.cold_after_s,
        high_watermark=config.high_watermark,
        low_watermark=config.low_watermark,
    )
