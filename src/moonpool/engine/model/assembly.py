"""Puts an engine's parts together: which types, how many pages, which attention."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from typing import NamedTuple

import torch

from moonpool.cache.layout import HeadsLayout
from moonpool.cache.pages import PagePool
from moonpool.core.clock import SystemClock
from moonpool.core.engine_section import EngineConfig
from moonpool.core.errors import BadConfig
from moonpool.core.keys import KeySpec
from moonpool.core.sections import SCHEMA, HandoffConfig
from moonpool.engine.core import EngineCore
from moonpool.engine.disagg import Disagg, Role, kv_memory
from moonpool.engine.events import EventPublisher
from moonpool.engine.model.attention.choice import choose
from moonpool.engine.model.attention.sparse import SparseDecoding
from moonpool.engine.model.config import ModelConfig
from moonpool.engine.model.lanes import Lanes
from moonpool.engine.model.llama import Llama, fingerprint
from moonpool.engine.model.runner import Runner
from moonpool.engine.model.weights import Checkpoint
from moonpool.engine.pooling.link import PoolLink
from moonpool.engine.pooling.page_bytes import PageBytes
from moonpool.pool.pool import Pool


class Assembled(NamedTuple):
    core: EngineCore
    fingerprint: str
    attention: str
    events: EventPublisher | None = None


def assemble(checkpoint: Checkpoint, config: EngineConfig, pool: Pool | None = None) -> Assembled:
    """Raises BadConfig."""
    if config.threads:
        torch.set_num_threads(config.threads)
    device = _device(config.device)
    dtype = checkpoint.config.dtype if config.dtype == "auto" else config.dtype
    compute = compute_type(dtype, config.compute, device)
    model = Llama(checkpoint.config, checkpoint.weights, compute=compute, device=device)
    layout = layout_of(checkpoint.config, config.block_size, dtype)
    count = layout.pages_in(config.kv_memory)
    if count < 1:
        raise BadConfig(
            f"engine.kv_memory = {config.kv_memory} is less than one page "
            f"({layout.bytes_per_page} bytes for {config.block_size} tokens)"
        )
    pages = PagePool(layout, count, device)
    chosen = choose(pages.storage, checkpoint.config.heads, compute, config.attention)
    name, attention, decoding = chosen.name, chosen.attention, None
    if config.sparse != "none":
        decoding = SparseDecoding(pages.storage, compute, config.sparse, config.top_k)
        attention = decoding.prefill(attention)
        name = f"{config.sparse}, {config.top_k} tokens a step; prompts {name}"
    lanes = Lanes(torch.get_num_threads() if device.type == "cpu" else 1)
    runner = Runner(model, attention, config.decode_rows, lanes, decoding)
    mark = fingerprint(checkpoint.config, checkpoint.weights)
    spec = key_spec(checkpoint.config, mark, layout, config.chunk_tokens, compute)
    link, disagg, events = None, None, None
    with ExitStack() as started:
        started.callback(runner.close)
        if pool is not None:
            link = PoolLink(pool, spec, PageBytes(pages), config, SystemClock())
            started.callback(link.close)
        if config.role != "none":
            disagg = hand_over(spec, pages, config.role)
            started.callback(disagg.close)
        core = EngineCore(runner, pages, config, checkpoint.config.context_tokens, link, disagg)
        if config.events:
            events = EventPublisher(core.cache, config, SystemClock())
        started.pop_all()
    return Assembled(core, mark, name, events)


def hand_over(spec: KeySpec, pages: PagePool, role: Role) -> Disagg:
    """The engine's ends of hand-overs, set up as [handoff] says. Raises BadConfig, BadInput."""
    config = SCHEMA.load(HandoffConfig, env=os.environ).value
    memory = kv_memory(pages, f"{spec.model} {spec.dtype} {spec.layout}")
    return Disagg(f"{socket.gethostname()}-{os.getpid()}", memory, role, config)


def key_spec(
    model: ModelConfig, mark: str, layout: HeadsLayout, chunk_tokens: int, compute: torch.dtype
) -> KeySpec:
    """All that decides the bits of a block. The width of a pass and the type calculated in are
    among it: they decide the last of them."""
    calculated = str(compute).removeprefix("torch.")
    return KeySpec(
        model=f"llama-{model.layers}x{model.hidden_size}@{mark}",
        dtype=layout.dtype if calculated == layout.dtype else f"{layout.dtype}/{calculated}",
        layout=f"{layout.axes}/{chunk_tokens}",
        block_size=layout.page_size,
    )


def layout_of(config: ModelConfig, block_size: int, dtype: str) -> HeadsLayout:
    """How pages lie in memory: each in one piece, so that it moves in one piece."""
    return HeadsLayout(
        layers=config.layers,
        page_size=block_size,
        dtype=dtype,
        page_first=True,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
    )


def compute_type(dtype: str, compute: str, device: torch.device) -> torch.dtype:
    """The type that is calculated in."""
    if compute != "auto":
        return _torch_type(compute)
    if device.type == "cpu" and not has_short_arithmetic(dtype):
        return torch.float32
    return _torch_type(dtype)


def has_short_arithmetic(dtype: str) -> bool:
    """Whether this processor multiplies matrices of `dtype` itself, instead of imitating it."""
    if dtype == "bfloat16":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return dtype == "float32"


def _torch_type(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise BadConfig(f"engine.device = {name!r} is no device of torch: {error}") from None
