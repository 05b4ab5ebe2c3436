"""The small decoder's arithmetic, in numpy: what training computes in torch, for chunks of tokens.

Attention is absorbed (DeepSeek's MLA): a query is taken into the latent space once, and rows are
read as they lie in the cache. Rows are float16 before anything sees them, also the newest ones, so
it makes no difference where a row was kept.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moonpool.sparse.decoder.shape import KNOWN_TOKENS, DecoderShape
from moonpool.sparse.decoder.weights import F32, LayerWeights, Weights
from moonpool.sparse.indexers import DsaQuery

F16 = NDArray[np.float16]
I64 = NDArray[np.int64]
_EPS = np.float32(1e-5)
_BASE = 10000.0


class Entries(NamedTuple):
    """What a layer keeps of each token: `rows` f16[n, latent + rope], `keys` f32[n, index]."""

    rows: F16
    keys: F32


def embedded(weights: Weights, tokens: I64, before: int | None) -> F32:
    """f32[n, hidden] of tokens i64[n] behind the token `before`; None: they are the first."""
    hidden: F32 = weights.embeddings[tokens]
    past = np.empty_like(hidden)
    past[1:] = hidden[:-1]
    past[0] = 0 if before is None else weights.embeddings[before]
    return hidden + past @ weights.shift


def normed(x: F32, weight: F32) -> F32:
    mean: F32 = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
    out: F32 = x / np.sqrt(mean + _EPS) * weight
    return out


def angles(positions: I64, rope: int) -> tuple[F32, F32]:
    """Cosine and sine f32[n, rope / 2] of rotary embeddings."""
    speed = _BASE ** (-np.arange(0, rope, 2) / rope)
    turned = positions[:, None] * speed[None, :]
    return np.cos(turned).astype(np.float32), np.sin(turned).astype(np.float32)


def rotated(x: F32, cos: F32, sin: F32) -> F32:
    """The last axis of `x` [..., n, rope] turned by each token's angles."""
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def entries(shape: DecoderShape, layer: LayerWeights, x: F32, positions: I64) -> Entries:
    """Of tokens whose normed hidden states are `x` f32[n, hidden]."""
    cos, sin = angles(positions, shape.rope)
    down = x @ layer.down
    latent = normed(down[:, : shape.latent], layer.latent_norm)
    turned = rotated(down[:, shape.latent :], cos, sin)
    rows = np.concatenate([latent, turned], axis=1).astype(np.float16)
    keys = x @ layer.index_key
    keys = np.concatenate([rotated(keys[:, : shape.rope], cos, sin), keys[:, shape.rope :]], axis=1)
    return Entries(rows, keys)


def queries(shape: DecoderShape, layer: LayerWeights, x: F32, positions: I64) -> F32:
    """f32[heads, n, latent + rope], scaled: their products with rows are the logits."""
    cos, sin = angles(positions, shape.rope)
    q = (x @ layer.query).reshape(len(x), shape.heads, -1).transpose(1, 0, 2)
    taken = q[..., : shape.head] @ layer.up_key
    both = np.concatenate([taken, rotated(q[..., shape.head :], cos, sin)], axis=-1)
    sharp = np.maximum(1, np.log(positions + 1) / math.log(KNOWN_TOKENS)).astype(np.float32)
    out: F32 = both * (sharp / np.float32(math.sqrt(shape.head + shape.rope)))[None, :, None]
    return out


def index_query(shape: DecoderShape, layer: LayerWeights, x: F32, position: int) -> DsaQuery:
    """Of one token, `x` f32[hidden]."""
    cos, sin = angles(np.array([position]), shape.rope)
    heads = (x @ layer.index_query).reshape(shape.index_heads, shape.index)
    turned = rotated(heads[:, : shape.rope], cos, sin)
    return DsaQuery(
        np.concatenate([turned, heads[:, shape.rope :]], axis=1), x @ layer.index_weight
    )


def weighed(scores: F32) -> F32:
    """Softmax over the last axis."""
    e: F32 = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: F32 = e / e.sum(axis=-1, keepdims=True, dtype=np.float32)
    return shares


def mixed(shape: DecoderShape, layer: LayerWeights, shares: F32, rows: F32) -> F32:
    """f32[n, hidden] of shares f32[heads, n, m] over rows f32[m, latent + rope]."""
    latents: F32 = shares @ rows[:, : shape.latent]
    heads: F32 = (latents @ layer.up_value).transpose(1, 0, 2).reshape(shares.shape[1], -1)
    out: F32 = heads @ layer.out
    return out


def feed_forward(layer: LayerWeights, x: F32) -> F32:
    y = normed(x, layer.inner_norm)
    gate = y @ layer.gate
    out: F32 = (gate / (1 + np.exp(-gate)) * (y @ layer.up)) @ layer.back
    return out
