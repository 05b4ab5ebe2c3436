"""The class vLLM loads for prefill/decode splits: a thin face, as connector.py is for the pool.

Imports vLLM, so it is imported by the package's `__getattr__` only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.request import RequestStatus

from moonpool.connectors.vllm.pd_assembly import WorkerParts, scheduler_side, view_of
from moonpool.connectors.vllm.pd_config import settings_of
from moonpool.connectors.vllm.pd_metadata import HandoffPlan
from moonpool.connectors.vllm.pd_scheduler import HandoffScheduler
from moonpool.connectors.vllm.pd_worker import HandoffWorker

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

KVConnectorMetadata.register(HandoffPlan)

_FINISHED_WELL = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)


class MoonpoolHandoffConnector(KVConnectorBase_V1, SupportsHMA):
    """Prompts computed by one vLLM, decoded by another."""

    _cache_hit_source = CacheHitSource.P2P

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = self._kv_transfer_config
        settings = settings_of(transfer.kv_connector_extra_config)
        view = view_of(vllm_config, kv_cache_config, settings)
        self._scheduler: HandoffScheduler | None = None
        self._parts: WorkerParts | None = None
        self._worker: HandoffWorker | None = None
        if role is KVConnectorRole.SCHEDULER:
            if settings.pd.load_failure == "recompute":
                transfer.kv_load_failure_policy = "recompute"
            self._scheduler = scheduler_side(vllm_config, view)
        else:
            self._parts = WorkerParts(vllm_config, view, settings)

    # --- scheduler --------------------------------------------------------------------------------

    @property
    def scheduler(self) -> HandoffScheduler:
        assert self._scheduler is not None, "asked in a worker"
        return self._scheduler

    def on_new_request(self, request: Request) -> None:
        self.scheduler.new(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        tokens = self.scheduler.matched(request, num_computed_tokens)
        return tokens, tokens > 0

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        self.scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> HandoffPlan:
        state = scheduler_output.kv_connector_block_state
        assert state is not None, "vLLM 0.32 offers the block tables of the step"
        return self.scheduler.plan(
            _scheduled(scheduler_output),
            state.get_block_ids,
            scheduler_output.preempted_req_ids or (),
        )

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self.scheduler.quiet(connector_output.finished_sending or ())
        self.scheduler.quiet(connector_output.finished_recving or ())

    def has_pending_push_work(self) -> bool:
        return self.scheduler.pending

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        aborted = request.status not in _FINISHED_WELL
        return self.scheduler.finished(request.request_id, aborted), None

    # --- worker -----------------------------------------------------------------------------------

    @property
    def worker(self) -> HandoffWorker:
        assert self._worker is not None, "asked before the caches were registered"
        return self._worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        assert self._parts is not None, "asked in the scheduler"
        self._worker = self._parts.register(kv_caches)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        self.worker.bind(connector_metadata)

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        self.worker.before_reuse(kv_connector_metadata)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        self.worker.start_loads()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Blocks that were asked for come before their request is scheduled, never during."""

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: torch.Tensor,
        attn_metadata: AttentionMetadata,
        **kwargs: Any,
    ) -> None:
        self.worker.layer_done(layer_name)

    def wait_for_save(self) -> None:
        """Pushes go on while other steps compute; blocks are kept by request_finished."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = self.worker.results()
        self._bad_blocks = results.bad_blocks
        return KVConnectorTransferResults(
            finished_sending=results.sent, finished_recving=results.received
        )

    def get_block_ids_with_load_errors(self) -> set[int]:
        found, self._bad_blocks = self._bad_blocks, set()
        return found

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Layers are pushed as they are computed."""
        return True

    _bad_blocks: set[int] = set()


def _scheduled(output: SchedulerOutput) -> Iterator[tuple[str, int]]:
    """Each request of the step and how many tokens it has computed after it."""
    tokens = output.num_scheduled_tokens
    for new in output.scheduled_new_reqs:
        yield new.req_id, new.num_computed_tokens + tokens[new.req_id]
    cached = output.scheduled_cached_reqs
    for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        yield request_id, computed + tokens[request_id]
