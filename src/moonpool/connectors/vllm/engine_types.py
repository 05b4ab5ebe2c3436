"""Our plain values as the classes vLLM wants: statistics, metrics, events. Imports vLLM."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from moonpool.connectors.vllm.counters import COUNTERS, merged
from moonpool.connectors.vllm.events import Removed, Stored
from moonpool.connectors.vllm.metadata import StepPlan, WorkerReport

KVConnectorMetadata.register(StepPlan)
KVConnectorWorkerMetadata.register(WorkerReport)

PREFIX = "vllm:moonpool_"  # vLLM snapshots only what begins so


class MoonpoolStats(KVConnectorStats):
    """Sums by name since the last report."""

    data: dict[str, float]

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        self.data = merged(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log line: what is not zero."""
        return {name: round(value, 4) for name, value in sorted(self.data.items()) if value}

    def is_empty(self) -> bool:
        return not self.data


class MoonpoolPromMetrics(KVConnectorPromMetrics):
    """One Prometheus counter for each of COUNTERS, all present from the start. Never raises."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._counters: dict[int, dict[str, Any]] = {
            engine: {} for engine in self.per_engine_labelvalues
        }
        for name, (text, parts) in COUNTERS.items():
            labels = [*self._labelnames, "reason"] if parts else list(self._labelnames)
            metric = self._counter_cls(
                name=f"{PREFIX}{name}", documentation=text, labelnames=labels
            )
            for engine, values in self.per_engine_labelvalues.items():
                for part in parts or ("",):
                    full = [*values, part] if parts else values
                    key = f"{name}/{part}" if parts else name
                    self._counters[engine][key] = metric.labels(*full)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        known = self._counters.get(engine_idx, {})
        for name, value in transfer_stats_data.items():
            if name in known and value > 0:
                known[name].inc(value)


def engine_event(event: Stored | Removed) -> KVCacheEvent:
    """An event of the pool in vLLM's words."""
    if isinstance(event, Removed):
        return BlockRemoved(block_hashes=list(event.hashes), medium=event.medium, group_idx=0)
    return BlockStored(
        block_hashes=list(event.hashes),
        parent_block_hash=event.parent,
        token_ids=list(event.tokens),
        block_size=event.block_size,
        lora_id=event.lora_id,
        medium=event.medium,
        lora_name=event.lora_name,
        group_idx=0,
    )


__all__ = ["MoonpoolPromMetrics", "MoonpoolStats", "engine_event"]
