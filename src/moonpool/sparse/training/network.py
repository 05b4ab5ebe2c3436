"""The small decoder in torch, for training: the arithmetic of decoder/arithmetic.py on batches.

The lightning indexer learns beside the rest, from detached hidden states: its softmax is drawn
towards the attention that all heads pay together. First attention is dense, later it sees only what
the indexer chooses, and the rest learns to live with that (DeepSeek-V3.2's two stages).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from moonpool.sparse.decoder.shape import KNOWN_TOKENS, DecoderShape

_EPS = 1e-5
_BASE = 10000.0


class Passed(NamedTuple):
    logits: Tensor
    """[batch, tokens, vocabulary]."""
    divergence: Tensor
    """Of the indexers from dense attention in nats, mean over layers and tokens."""


class Network:
    """`weights` by the names of DecoderShape.tensors, drawn from `seed`."""

    def __init__(self, shape: DecoderShape, seed: int) -> None:
        self.shape = shape
        self.weights: dict[str, Tensor] = {}
        random = torch.Generator().manual_seed(seed)
        for name, size in shape.tensors().items():
            if name.endswith("norm"):
                start = torch.ones(size)
            else:
                spread = 0.02 if name == "embeddings" else size[-2] ** -0.5
                start = torch.randn(size, generator=random) * spread
            self.weights[name] = start.requires_grad_()

    def take(self, name: str) -> Tensor:
        return self.weights[name]

    def passed(self, tokens: Tensor, *, top_k: int = 0) -> Passed:
        """Of tokens [batch, n]. With `top_k` each token attends to as many as its indexers choose,
        and itself; else to all before it."""
        shape = self.shape
        count = tokens.shape[1]
        turn = _angles(count, shape.rope)
        future = torch.full((count, count), -torch.inf).triu(1)
        embeddings = self.take("embeddings")
        hidden = embeddings[tokens]
        hidden = hidden + functional.pad(hidden[:, :-1], (0, 0, 1, 0)) @ self.take("shift")
        divergence = torch.zeros(())
        for number in range(shape.layers):
            at = f"layers.{number}."
            x = _normed(hidden, self.take(at + "norm"))
            scores = self._index(at, x.detach(), turn) + future
            rows, logits = self._attention(at, x, turn)
            logits = logits + future
            with torch.no_grad():
                wanted = torch.softmax(logits, dim=-1).mean(dim=1)
            divergence = divergence + _divergence(wanted, scores)
            if 0 < top_k < count:
                logits = logits + _left_out(scores, top_k)[:, None]
            hidden = hidden + self._mixed(at, torch.softmax(logits, dim=-1), rows)
            y = _normed(hidden, self.take(at + "inner_norm"))
            inner = functional.silu(y @ self.take(at + "gate")) * (y @ self.take(at + "up"))
            hidden = hidden + inner @ self.take(at + "back")
        told = _normed(hidden, self.take("norm")) @ embeddings.t()
        return Passed(told, divergence / shape.layers)

    def _attention(self, at: str, x: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        """Cache rows [batch, n, latent + rope], and logits [batch, heads, n, n]."""
        shape = self.shape
        batch, count, _ = x.shape
        down = x @ self.take(at + "down")
        latent = _normed(down[..., : shape.latent], self.take(at + "latent_norm"))
        rows = torch.cat([latent, _rotated(down[..., shape.latent :], turn)], dim=-1)
        q = (x @ self.take(at + "query")).view(batch, count, shape.heads, -1).transpose(1, 2)
        taken = q[..., : shape.head] @ self.take(at + "up_key")
        both = torch.cat([taken, _rotated(q[..., shape.head :], turn)], dim=-1)
        sharp = torch.log(torch.arange(count) + 1.0) / math.log(KNOWN_TOKENS)
        both = both * (sharp.clamp(min=1) / math.sqrt(shape.head + shape.rope))[:, None]
        return rows, both @ rows.transpose(1, 2)[:, None]

    def _mixed(self, at: str, shares: Tensor, rows: Tensor) -> Tensor:
        latent = rows[..., : self.shape.latent]
        heads = (shares @ latent[:, None]) @ self.take(at + "up_value")
        batch, _, count, _ = heads.shape
        return heads.transpose(1, 2).reshape(batch, count, -1) @ self.take(at + "out")

    def _index(self, at: str, x: Tensor, turn: Turn) -> Tensor:
        shape = self.shape
        batch, count, _ = x.shape
        keys = x @ self.take(at + "index_key")
        keys = torch.cat([_rotated(keys[..., : shape.rope], turn), keys[..., shape.rope :]], dim=-1)
        q = (x @ self.take(at + "index_query")).view(batch, count, shape.index_heads, -1)
        q = q.transpose(1, 2)
        q = torch.cat([_rotated(q[..., : shape.rope], turn), q[..., shape.rope :]], dim=-1)
        each = torch.relu(q @ keys.transpose(1, 2)[:, None])  # [batch, heads, n, n]
        weights = (x @ self.take(at + "index_weight")).transpose(1, 2)[..., None]
        return (each * weights).sum(dim=1)


class Turn(NamedTuple):
    cos: Tensor
    sin: Tensor


def _angles(count: int, rope: int) -> Turn:
    speed = _BASE ** (-torch.arange(0, rope, 2) / rope)
    turned = torch.arange(count)[:, None] * speed[None, :]
    return Turn(turned.cos(), turned.sin())


def _rotated(x: Tensor, turn: Turn) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat(
        [first * turn.cos - second * turn.sin, second * turn.cos + first * turn.sin], dim=-1
    )


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, _EPS)


def _divergence(wanted: Tensor, scores: Tensor) -> Tensor:
    """KL from `wanted` to the indexer's softmax, mean over tokens."""
    told = torch.log_softmax(scores, dim=-1)
    terms = torch.where(wanted > 0, wanted * (torch.log(wanted.clamp(min=1e-12)) - told), 0.0)
    return terms.sum(dim=-1).mean()


def _left_out(scores: Tensor, top_k: int) -> Tensor:
    """[batch, n, n]: -inf at what an indexer does not choose, but at each token itself."""
    out = torch.full_like(scores, -torch.inf)
    out.scatter_(-1, scores.detach().topk(top_k, dim=-1).indices, 0.0)
    return out.diagonal_scatter(torch.zeros(out.shape[:2]), dim1=1, dim2=2)
