"""A decoder with wide random weights: what it answers depends on every row it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from moonpool.sparse import SparseReader
from moonpool.sparse.decoder import (
    Conversation,
    DecoderShape,
    Prefix,
    Session,
    Weights,
    conversation,
    follow,
    local_reader,
    prefill,
)
from moonpool.sparse.decoder.task import VOCABULARY
from moonpool.sparse.decoder.weights import F32, assemble

TOKENS, STEPS, TOP_K = 300, 5, 40
SHAPE = DecoderShape(
    VOCABULARY, layers=3, hidden=32, heads=2, head=8, rope=8, latent=24, inner=32, index=16
)


def random_weights(seed: int = 0, shape: DecoderShape = SHAPE) -> Weights:
    random = np.random.default_rng(seed)
    arrays = {
        name: random.normal(0, 1.5 * size[-2] ** -0.5 if len(size) > 1 else 1, size)
        for name, size in shape.tensors().items()
    }
    return assemble(shape, arrays)


class Spoken(NamedTuple):
    weights: Weights
    talk: Conversation
    prefix: Prefix

    @property
    def last(self) -> int:
        return int(self.talk.prompt[-1])

    def answer(self, open_reader: Callable[[], SparseReader], **options: object) -> F32:
        """The logits of all steps."""
        options = {"top_k": TOP_K, **options}
        with Session(self.weights, open_reader, self.last, **options) as session:  # type: ignore[arg-type]
            return follow(session, self.talk).logits

    def local(self) -> SparseReader:
        return local_reader(self.weights, self.prefix)


def spoken(tokens: int = TOKENS, seed: int = 0) -> Spoken:
    weights, talk = random_weights(seed), conversation(tokens, STEPS, seed)
    return Spoken(weights, talk, prefill(weights, talk.prompt.tolist(), hint_tokens=2 * TOP_K))
