"""What both classes that vLLM loads hand on alike. Imports vLLM, as they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA

if TYPE_CHECKING:
    import torch
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


class SchedulerPart(Protocol):
    def allocated(
        self, request: Any, block_ids: Sequence[Sequence[int]], external_tokens: int
    ) -> None: ...


class WorkerPart(Protocol):
    def bind(self, plan: Any) -> None: ...

    def start_loads(self) -> None: ...

    def layer_done(self, name: str) -> None: ...


S = TypeVar("S", bound=SchedulerPart)
W = TypeVar("W", bound=WorkerPart)


class Face(KVConnectorBase_V1, SupportsHMA, Generic[S, W]):
    """One of the two parts is there, as the role says; a worker's perhaps not from the start."""

    _scheduler: S | None = None
    _worker: W | None = None

    @property
    def scheduler(self) -> S:
        assert self._scheduler is not None, "asked in a worker"
        return self._scheduler

    @property
    def worker(self) -> W:
        assert self._worker is not None, "asked in the scheduler, or before there are caches"
        return self._worker

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        self.scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        found: tuple[bool, dict[str, Any] | None]
        found = self.request_finished_all_groups(request, (block_ids,))
        return found

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        self.worker.bind(connector_metadata)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        self.worker.start_loads()

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: torch.Tensor,
        attn_metadata: AttentionMetadata,
        **kwargs: Any,
    ) -> None:
        self.worker.layer_done(layer_name)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Layers are waited for, and read as they are computed."""
        return True


def scheduled(output: SchedulerOutput) -> Iterator[tuple[str, int]]:
    """Each request of the step and how many tokens it has computed after it."""
    tokens = output.num_scheduled_tokens
    for new in output.scheduled_new_reqs:
        yield new.req_id, new.num_computed_tokens + tokens[new.req_id]
    cached = output.scheduled_cached_reqs
    for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        yield request_id, computed + tokens[request_id]


def block_tables(output: SchedulerOutput) -> Callable[[str], Any]:
    """Each request's blocks, by its id."""
    state = output.kv_connector_block_state
    assert state is not None, "vLLM 0.32 offers the block tables of the step"
    found: Callable[[str], Any] = state.get_block_ids
    return found
