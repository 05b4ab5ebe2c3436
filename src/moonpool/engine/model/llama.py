"""A Llama, written to be read: embeddings, then layers of attention and feed-forward, then logits.

Attention is not in here: `forward` hands queries, keys and values of each layer to a callable that
keeps the cache. All matrices are multiplied by rows of one width at a time (see runner.py), which
is what makes answers equal to the bit however the prefix came about.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from moonpool.engine.model.config import ModelConfig

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [rows, heads, dim], k, v [rows, kv_heads, dim]) -> [rows, heads * dim]."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer. Projections that read the same input are one matrix; all stand as they
    are multiplied, inputs by outputs, which for few rows is up to 1.4 times as fast."""

    attention_norm: Tensor
    qkv: Tensor  # [hidden, (heads + 2 kv_heads) * dim]
    out: Tensor  # [heads * dim, hidden]
    inner_norm: Tensor
    gate_up: Tensor  # [hidden, 2 inner]
    down: Tensor  # [inner, hidden]


class Llama:
    """Weights in `compute` on `device`, and the arithmetic over them.

    `compute` may be wider than the weights were saved in: the values are the same, and processors
    without bfloat16 arithmetic are several times faster in float32.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        *,
        compute: torch.dtype,
        device: torch.device,
    ) -> None:
        def take(name: str) -> Tensor:
            return weights[f"{name}.weight"].to(device=device, dtype=compute, copy=True)

        def matrix(*names: str) -> Tensor:
            whole = torch.cat([weights[f"{name}.weight"] for name in names])
            return whole.t().to(device=device, dtype=compute).contiguous()

        self.config = config
        self.device = device
        self._compute = compute
        self._embeddings = weights["model.embed_tokens.weight"].to(device)
        self._head = matrix("model.embed_tokens" if config.tied else "lm_head")
        self._norm = take("model.norm")
        self._layers = []
        for number in range(config.layers):
            at = f"model.layers.{number}."
            queries, keys, values = (f"{at}self_attn.{n}_proj" for n in ("q", "k", "v"))
            self._layers.append(
                Layer(
                    take(f"{at}input_layernorm"),
                    matrix(queries, keys, values),
                    matrix(f"{at}self_attn.o_proj"),
                    take(f"{at}post_attention_layernorm"),
                    matrix(f"{at}mlp.gate_proj", f"{at}mlp.up_proj"),
                    matrix(f"{at}mlp.down_proj"),
                )
            )
        self._cos, self._sin = rotations(config, compute, device)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states [rows, hidden] of `tokens` [rows] at `positions` [rows]."""
        config = self.config
        heads, keys = config.heads, config.heads + config.kv_heads
        hidden = functional.embedding(tokens, self._embeddings).to(self._compute)
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        for number, layer in enumerate(self._layers):
            qkv = self._normed(hidden, layer.attention_norm) @ layer.qkv
            qkv = qkv.view(len(tokens), -1, config.head_dim)
            turned = rotate(qkv[:, :keys], cos, sin)
            mixed = attend(number, turned[:, :heads], turned[:, heads:], qkv[:, keys:])
            hidden = hidden + mixed @ layer.out
            gate, up = (self._normed(hidden, layer.inner_norm) @ layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + (functional.silu(gate) * up) @ layer.down
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, vocabulary] float32 of hidden states [rows, hidden]."""
        return (self._normed(hidden, self._norm) @ self._head).float()

    def _normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, self.config.norm_eps)


def rotations(
    config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosine and sine [context, dim] of rotary embeddings, the two halves alike."""
    pairs = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    speed = 1.0 / config.rope_theta**pairs
    if (scaling := config.rope_scaling) is not None:
        length = 2 * math.pi / speed
        low = scaling.original_context_tokens / scaling.low_freq_factor
        high = scaling.original_context_tokens / scaling.high_freq_factor
        share = (scaling.original_context_tokens / length - scaling.low_freq_factor) / (
            scaling.high_freq_factor - scaling.low_freq_factor
        )
        between = (1 - share) * speed / scaling.factor + share * speed
        slow = torch.where(length > low, speed / scaling.factor, speed)
        speed = torch.where((length <= low) & (length >= high), between, slow)
    angles = torch.outer(torch.arange(config.context_tokens).float(), speed)
    both = torch.cat((angles, angles), dim=-1)
    return both.cos().to(device, dtype), both.sin().to(device, dtype)


def rotate(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each head of `rows` [rows, heads, dim] by its row's position."""
    first, second = rows.chunk(2, dim=-1)
    return rows * cos + torch.cat((-second, first), dim=-1) * sin


def fingerprint(config: ModelConfig, weights: Mapping[str, Tensor]) -> str:
    """A digest of what the weights are, whatever file they came from: 32 hex digits.

    Over shape, names and values, in an order of its own: a GGUF file and a directory converted
    from it have one fingerprint when their values are the same.
    """
    arithmetic = msgspec.structs.replace(config, context_tokens=1, dtype="")
    digest = hashlib.sha256(repr(arithmetic).encode())
    for name in sorted(config.shapes()):
        tensor = weights[name].contiguous().cpu()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(memoryview(tensor.flatten().view(torch.uint8).numpy()))
    return digest.hexdigest()[:32]
