"""The class vLLM loads: a thin face that hands each call to the scheduler's or the worker's side.

Imports vLLM, so it is imported by the package's `__getattr__` only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorRole,
    KVConnectorTransferResults,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from moonpool.connectors.vllm.assembly import SchedulerSide, WorkerSide
from moonpool.connectors.vllm.config import connector_config
from moonpool.connectors.vllm.engine_types import (
    MoonpoolPromMetrics,
    MoonpoolStats,
    engine_event,
)
from moonpool.connectors.vllm.face import Face, block_tables, scheduled
from moonpool.connectors.vllm.metadata import StepPlan, WorkerReport

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class MoonpoolConnector(Face[SchedulerSide, WorkerSide]):
    """vLLM's prefixes in a Moonpool pool: what one engine computed, any of them loads."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = self._kv_transfer_config
        config = connector_config(transfer.kv_connector_extra_config)
        if role is KVConnectorRole.SCHEDULER:
            if config.load_failure == "recompute":
                transfer.kv_load_failure_policy = "recompute"
            self._scheduler = SchedulerSide(vllm_config, kv_cache_config, config)
        else:
            self._worker = WorkerSide(vllm_config, kv_cache_config, config)

    @property
    def requires_kv_delivery(self) -> bool:
        """A block that is not stored is a miss later, nothing else."""
        return False

    # --- scheduler --------------------------------------------------------------------------------

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self.scheduler.matched(request, num_computed_tokens, time.monotonic())

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepPlan:
        return self.scheduler.plan(
            scheduled(scheduler_output), block_tables(scheduler_output), time.monotonic()
        )

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, WorkerReport):
            self.scheduler.reported(report, time.monotonic())

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Never asks vLLM to keep the blocks: what is stored of them was copied in its step."""
        self.scheduler.finished(request.request_id)
        return False, None

    def take_events(self) -> Iterable[KVCacheEvent]:
        return [engine_event(event) for event in self.scheduler.take_events()]

    # --- worker -----------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.worker.register(kv_caches)

    def wait_for_layer_load(self, layer_name: str) -> None:
        self.worker.wait_for_layer(layer_name)

    def wait_for_save(self) -> None:
        self.worker.wait_for_saves()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        received = self.worker.received(finished_req_ids)
        return KVConnectorTransferResults(
            finished_recving=received.finished, failed_recving=received.failed
        )

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self.worker.take_bad_blocks()

    def build_connector_worker_meta(self) -> Any:
        return self.worker.report()

    # --- both -------------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> MoonpoolStats | None:
        counters = (self._scheduler or self.worker).counters
        taken = counters.take()
        return MoonpoolStats(data=taken) if taken else None

    def shutdown(self) -> None:
        (self._scheduler or self.worker).close()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> MoonpoolStats:
        return MoonpoolStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, *arguments: Any) -> MoonpoolPromMetrics:
        return MoonpoolPromMetrics(*arguments)
