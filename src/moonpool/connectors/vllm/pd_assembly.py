"""The two sides of the hand-over connector, put together from vLLM's configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moonpool.connectors.vllm.config import ConnectorConfig
from moonpool.connectors.vllm.identity import EngineView, engine_view
from moonpool.connectors.vllm.pd_config import Settings
from moonpool.connectors.vllm.pd_scheduler import HandoffScheduler
from moonpool.connectors.vllm.pd_worker import HandoffWorker
from moonpool.core.errors import BadConfig
from moonpool.transfer.handoff import DecodeNode, KVLayout, KVMemory, PartMemory, PrefillNode

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

LOG = logging.getLogger("vllm.moonpool")


def view_of(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, settings: Settings
) -> EngineView:
    """Raises BadConfig for an engine whose blocks cannot be handed over."""
    view = engine_view(vllm_config, kv_cache_config, ConnectorConfig(model=settings.pd.model))
    if len(view.groups) != 1:
        raise BadConfig(
            f"MoonpoolHandoffConnector hands over one KV cache group; this model has "
            f"{len(view.groups)}"
        )
    if view.identity.pp_size != 1:
        raise BadConfig("MoonpoolHandoffConnector does not know pipeline parallelism; use 1 stage")
    return view


def scheduler_side(vllm_config: VllmConfig, view: EngineView) -> HandoffScheduler:
    transfer = vllm_config.kv_transfer_config
    return HandoffScheduler(
        view.groups[0].block_size,
        produces=transfer.is_kv_producer,
        consumes=transfer.is_kv_consumer,
        warn=LOG.warning,
    )


class WorkerParts:
    """Makes the worker once vLLM registers its caches."""

    def __init__(self, vllm_config: VllmConfig, view: EngineView, settings: Settings) -> None:
        self._transfer = vllm_config.kv_transfer_config
        self._view, self._settings = view, settings

    def register(self, caches: Mapping[str, torch.Tensor]) -> HandoffWorker:
        """Raises BadConfig for caches that cannot be handed over, TransferError (port taken)."""
        view, transfer, settings = self._view, self._transfer, self._settings
        memory = kv_memory(view, caches)
        name = settings.pd.name or transfer.engine_id or "vllm"
        prefill = decode = None
        if transfer.is_kv_producer:
            prefill = PrefillNode(name, memory, settings.handoff)
            LOG.info("Moonpool: %s is handed over at %s", name, prefill.start())
        if transfer.is_kv_consumer:
            decode = DecodeNode(name, memory, settings.handoff)
        return HandoffWorker(list(view.groups[0].layers), prefill, decode)


def kv_memory(view: EngineView, caches: Mapping[str, torch.Tensor]) -> KVMemory:
    """vLLM's tensors as they lie, a block at a time. Raises BadConfig."""
    group = view.groups[0]
    parts = [_part(name, caches.get(name), view.blocks) for name in group.layers]
    sizes = {size for _, size in parts}
    if len(sizes) != 1 or min(sizes) % group.block_size:
        raise BadConfig(f"layers with blocks of {sorted(sizes)} bytes cannot be handed over")
    identity = view.identity.groups[0]
    layout = KVLayout(
        model=f"{view.identity.model} {view.identity.tenant}".strip(),
        dtype=identity.dtype,
        layers=len(parts),
        block_tokens=group.block_size,
        kv_heads=view.identity.tp_size,
        token_bytes=min(sizes) // group.block_size,
        flavour=identity.layout,
        tp_size=view.identity.tp_size,
        tp_rank=view.shard.tp_rank,
    )
    return KVMemory(layout, view.blocks, [[part] for part, _ in parts])


def _part(name: str, cache: Any, blocks: int) -> tuple[PartMemory, int]:
    """One layer's cache and the bytes of its blocks."""
    import torch

    if not isinstance(cache, torch.Tensor) or cache.device.type != "cpu":
        raise BadConfig(
            f"the cache of {name} is no single tensor in CPU memory; this release of "
            "MoonpoolHandoffConnector moves such only (vLLM's CPU backend)"
        )
    if cache.shape[0] % blocks or not cache.is_contiguous():
        raise BadConfig(f"the cache of {name}, {tuple(cache.shape)}, is not {blocks} whole blocks")
    memory = torch.empty(0, dtype=torch.uint8).set_(cache.untyped_storage()).numpy()
    block_bytes = cache.nbytes // blocks
    return PartMemory(
        memory, cache.storage_offset() * cache.element_size(), block_bytes
    ), block_bytes
