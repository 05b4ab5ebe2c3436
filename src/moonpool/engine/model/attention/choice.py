"""Which attention an engine uses, and why not the faster one."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final, NamedTuple

import torch
from torch import Tensor

from moonpool.engine.model.attention.base import Attention
from moonpool.engine.model.attention.sdpa import SdpaAttention

FLASHINFER_DIMS: Final = (64, 128, 256)


class Choice(NamedTuple):
    attention: Attention
    name: str
    """With the reason where it is not FlashInfer."""


def choose(storage: Tensor, heads: int, compute: torch.dtype, wanted: str) -> Choice:
    """FlashInfer where it can be, else torch's own. `wanted`: "auto", or "sdpa"."""
    if wanted == "sdpa":
        reason = "engine.attention says so"
    else:
        reason = why_not_flashinfer(storage.device.type, storage.dtype, compute, storage.shape[-1])
    if not reason:
        from moonpool.engine.model.attention.flashinfer import FlashInferAttention

        return Choice(FlashInferAttention(storage, heads, compute), "flashinfer")
    return Choice(SdpaAttention(storage, heads, compute), f"sdpa: {reason}")


def why_not_flashinfer(
    device: str, stored: torch.dtype, compute: torch.dtype, head_dim: int
) -> str:
    """What it lacks here; "": nothing."""
    if device != "cuda":
        return f"FlashInfer is for CUDA, this is {device}"
    if stored != compute or compute not in (torch.bfloat16, torch.float16):
        return f"FlashInfer wants one half-width type, not {stored} and {compute}"
    if head_dim not in FLASHINFER_DIMS:
        return f"FlashInfer has no kernels for heads of {head_dim}"
    if find_spec("flashinfer") is None:
        return "the package flashinfer is not installed"
    return ""
