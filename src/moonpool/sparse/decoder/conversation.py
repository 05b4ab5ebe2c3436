"""A prompt and what is asked afterwards, fed to a session token by token: logits, hits, choices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moonpool.sparse.decoder.prefill import local_reader, prefill
from moonpool.sparse.decoder.session import Session
from moonpool.sparse.decoder.task import stream
from moonpool.sparse.decoder.weights import F32, Weights
from moonpool.sparse.layout import U32
from moonpool.sparse.traces import TopKTrace


class Conversation(NamedTuple):
    """`prompt` i64[n]; then `asked` i64[steps] is fed, and `wanted` i64[steps] should follow;
    `answers` bool[steps]: it can be looked up."""

    prompt: NDArray[np.int64]
    asked: NDArray[np.int64]
    wanted: NDArray[np.int64]
    answers: NDArray[np.bool_]


class Followed(NamedTuple):
    logits: F32  # [steps, vocabulary]
    right: float
    """Share of the answers that could be looked up and were."""


def conversation(tokens: int, steps: int, seed: int = 0) -> Conversation:
    """A prompt of so many tokens and so many steps behind it; the same for the same seed."""
    made = stream(np.random.default_rng(seed), tokens + steps + 1, restless_from=tokens)
    fed, after = made.tokens[tokens:-1], made.tokens[tokens + 1 :]
    return Conversation(made.tokens[:tokens], fed, after, made.answers[tokens + 1 :])


def follow(session: Session, talk: Conversation) -> Followed:
    """Feeds what is asked, whatever the decoder answers."""
    logits = np.stack([session.step(int(token)) for token in talk.asked])
    hits = logits.argmax(axis=1) == talk.wanted
    return Followed(logits, float(hits[talk.answers].mean()) if talk.answers.any() else 0.0)


def record(weights: Weights, talk: Conversation, top_k: int) -> tuple[TopKTrace, Followed]:
    """What the trained indexer chooses, step by step and layer by layer, and the hint it left."""
    chosen: list[U32] = []
    prefix = prefill(weights, talk.prompt.tolist(), hint_tokens=4 * top_k)
    with Session(
        weights,
        lambda: local_reader(weights, prefix),
        int(talk.prompt[-1]),
        top_k=top_k,
        on_choice=lambda layer, positions: chosen.append(positions),
    ) as session:
        followed = follow(session, talk)
    columns = np.stack(chosen).reshape(len(talk.asked), weights.shape.layers, -1)
    return TopKTrace(len(talk.prompt), columns, prefix.hint), followed
