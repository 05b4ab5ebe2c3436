"""The class vLLM loads for prefill/decode splits: a thin face, as connector.py is for the pool.

Imports vLLM, so it is imported by the package's `__getattr__` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.request import RequestStatus

from moonpool.connectors.vllm.face import Face, block_tables, scheduled
from moonpool.connectors.vllm.pd_assembly import WorkerParts, scheduler_side, view_of
from moonpool.connectors.vllm.pd_config import settings_of
from moonpool.connectors.vllm.pd_metadata import HandoffPlan
from moonpool.connectors.vllm.pd_scheduler import HandoffScheduler
from moonpool.connectors.vllm.pd_worker import HandoffWorker

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

KVConnectorMetadata.register(HandoffPlan)

_FINISHED_WELL = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)


class MoonpoolHandoffConnector(Face[HandoffScheduler, HandoffWorker]):
    """Prompts computed by one vLLM, decoded by another."""

    _cache_hit_source = CacheHitSource.P2P

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = self._kv_transfer_config
        settings = settings_of(transfer.kv_connector_extra_config)
        view = view_of(vllm_config, kv_cache_config, settings)
        self._parts: WorkerParts | None = None
        self._bad_blocks: set[int] = set()
        if role is KVConnectorRole.SCHEDULER:
            if settings.pd.load_failure == "recompute":
                transfer.kv_load_failure_policy = "recompute"
            self._scheduler = scheduler_side(vllm_config, view)
        else:
            self._parts = WorkerParts(vllm_config, view, settings)

    # --- scheduler --------------------------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        self.scheduler.new(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        tokens = self.scheduler.matched(request, num_computed_tokens)
        return tokens, tokens > 0

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> HandoffPlan:
        return self.scheduler.plan(
            scheduled(scheduler_output),
            block_tables(scheduler_output),
            scheduler_output.preempted_req_ids or (),
        )

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self.scheduler.quiet(connector_output.finished_sending or ())
        self.scheduler.quiet(connector_output.finished_recving or ())

    def has_pending_push_work(self) -> bool:
        return self.scheduler.pending

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        aborted = request.status not in _FINISHED_WELL
        return self.scheduler.finished(request.request_id, aborted), None

    # --- worker -----------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        assert self._parts is not None, "asked in the scheduler"
        self._worker = self._parts.register(kv_caches)

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        self.worker.before_reuse(kv_connector_metadata)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Blocks that were asked for come before their request is scheduled, never during."""

    def wait_for_save(self) -> None:
        """Pushes go on while other steps compute; blocks are kept by request_finished."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = self.worker.results()
        self._bad_blocks |= results.bad_blocks
        return KVConnectorTransferResults(
            finished_sending=results.sent, finished_recving=results.received
        )

    def get_block_ids_with_load_errors(self) -> set[int]:
        found, self._bad_blocks = self._bad_blocks, set()
        return found

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
