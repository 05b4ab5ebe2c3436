"""What the connector has to know of an engine, read from vLLM's configuration in one place."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from moonpool.connectors.vllm.config import ConnectorConfig, Load
from moonpool.connectors.vllm.fingerprint import adapter_fingerprint, model_fingerprint
from moonpool.connectors.vllm.keys import CacheIdentity, GroupIdentity, Shard
from moonpool.connectors.vllm.metadata import Namespace
from moonpool.connectors.vllm.versions import SUPPORTED
from moonpool.core.errors import BadConfig

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_STORABLE = {"FullAttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec"}


class GroupView(msgspec.Struct, frozen=True):
    """One KV group: its layers in the order vLLM lists them."""

    layers: tuple[str, ...]
    block_size: int


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """All that the two sides go by."""

    identity: CacheIdentity
    groups: tuple[GroupView, ...]
    hash_tokens: int
    """Tokens of one of vLLM's block hashes; a block is a multiple of it."""
    blocks: int
    shard: Shard
    shard_saves: bool
    """False in a worker that holds a copy of what another of its engine stores."""
    loads: bool
    saves: bool
    load: Load
    events: bool
    text: str


def engine_view(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: ConnectorConfig
) -> EngineView:
    """Raises BadConfig for an engine whose blocks cannot be stored."""
    parallel, transfer = vllm_config.parallel_config, vllm_config.kv_transfer_config
    _refuse_unsupported(parallel, kv_cache_config)
    groups = tuple(
        GroupView(tuple(group.layer_names), group.kv_cache_spec.block_size)
        for group in kv_cache_config.kv_cache_groups
    )
    hash_tokens = kv_cache_config.hash_block_size or groups[0].block_size
    check_block_sizes([group.block_size for group in groups], hash_tokens)
    replicas = max(1, kv_cache_config.kv_tp_replicas)
    tp_size, pp_size = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    identity = CacheIdentity(
        model=config.model or _model(vllm_config),
        hashing=vllm_config.cache_config.prefix_caching_hash_algo,
        groups=tuple(
            _group_identity(vllm_config, kv_cache_config, group)
            for group in kv_cache_config.kv_cache_groups
        ),
        tp_size=tp_size // replicas,
        pp_size=pp_size,
        tenant=config.tenant,
    )
    tp_rank, pp_rank = _ranks(tp_size * pp_size)
    layers_in_order = len(groups) == 1 and tp_size * pp_size == 1
    load = config.load if layers_in_order else "async"
    events = vllm_config.kv_events_config
    return EngineView(
        identity=identity,
        groups=groups,
        hash_tokens=hash_tokens,
        blocks=kv_cache_config.num_blocks,
        shard=Shard(tp_rank // replicas, pp_rank),
        shard_saves=tp_rank % replicas == 0,
        loads=transfer.is_kv_consumer,
        saves=transfer.is_kv_producer,
        load=load,
        events=events is not None and events.enable_kv_cache_events,
        text=_text(identity, groups, load, config),
    )


def check_block_sizes(block_sizes: list[int], hash_tokens: int) -> None:
    """Raises BadConfig unless every block is a whole number of hashes."""
    for size in block_sizes:
        if size % hash_tokens:
            raise BadConfig(
                f"blocks of {size} tokens are no multiple of the {hash_tokens} tokens that vLLM "
                "hashes at a time; choose a --block-size that is"
            )


def namespace_of(request: Any) -> Namespace:
    """LoRA and cache salt of a request; multimodal ids are in vLLM's hashes."""
    lora = request.lora_request
    adapter = _adapter(lora.lora_name, lora.lora_path) if lora is not None else None
    return Namespace(adapter, request.cache_salt or None)


_adapter = lru_cache(maxsize=1024)(adapter_fingerprint)


def published_as_numbers() -> bool:
    """How vLLM writes hashes into its events."""
    from vllm import envs

    return bool(envs.VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES)


def _refuse_unsupported(parallel: Any, kv_cache_config: KVCacheConfig) -> None:
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise BadConfig(f"MoonpoolConnector does not store caches split by {name}; use 1")
    kinds = {type(g.kv_cache_spec).__name__ for g in kv_cache_config.kv_cache_groups}
    if kinds - _STORABLE:
        raise BadConfig(
            f"MoonpoolConnector stores attention caches ({', '.join(sorted(_STORABLE))}); this "
            f"model also has {', '.join(sorted(kinds - _STORABLE))}"
        )


def _model(vllm_config: VllmConfig) -> str:
    model = vllm_config.model_config
    revision = model.revision or getattr(model.hf_config, "_commit_hash", None)
    settings = dict(model.hf_config.to_dict())
    settings["quantization"] = model.quantization
    return model_fingerprint(model.model, revision, settings, str(model.dtype))


def _group_identity(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, group: Any
) -> GroupIdentity:
    spec = group.kv_cache_spec
    exact = hashlib.sha256(repr((spec, tuple(group.layer_names))).encode()).hexdigest()[:32]
    parts = (
        f"vllm-{SUPPORTED[-1]}",
        _packing(vllm_config, spec),
        str(kv_cache_config.kv_cache_layout),
        type(spec).__name__,
        f"layers={len(group.layer_names)}",
        f"page={spec.page_size_bytes}",
        exact,
    )
    dtype = f"{str(spec.dtype).removeprefix('torch.')}/{vllm_config.cache_config.cache_dtype}"
    return GroupIdentity(block_size=spec.block_size, layout=";".join(parts), dtype=dtype)


def _packing(vllm_config: VllmConfig, spec: Any) -> str:
    """The CPU backend packs keys and values inside a block by the machine's vector units."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return str(current_platform.device_type)
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    cache_dtype = vllm_config.cache_config.cache_dtype
    dtype = vllm_config.model_config.dtype
    isa = _get_attn_isa(dtype, spec.block_size, spec.head_size, cache_dtype)
    return f"cpu-{os.uname().machine}-{isa}"


def _ranks(workers: int) -> tuple[int, int]:
    """This worker's place; in the scheduler's process there are no ranks and nobody asks."""
    if workers == 1:
        return 0, 0
    from vllm.distributed import parallel_state

    if not parallel_state.model_parallel_is_initialized():
        return 0, 0
    tensor = parallel_state.get_tensor_model_parallel_rank()
    return int(tensor), int(parallel_state.get_pp_group().rank_in_group)


def _text(
    identity: CacheIdentity,
    groups: tuple[GroupView, ...],
    load: Load,
    config: ConnectorConfig,
) -> str:
    sizes = "+".join(str(group.block_size) for group in groups)
    instead = f" (asked for {config.load})" if config.load != load else ""
    return f"model {identity.model}, blocks of {sizes} tokens, {load} loads{instead}"
