"""Equal names of different blocks: nobody is said to have what another salt's, adapter's or model's
events told."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from moonpool.router import Brain, RouteRequest, Worker, prefix_seed

TOKENS = list(range(10, 58))
KEYS = [7, 8, 9]
SALTED: dict[str, object] = {"extra_keys": [["tenant"], None, None]}
ADAPTED: dict[str, object] = {"lora_name": "tune", "extra_keys": [["tune"]] * 3}


def told(brain: Brain, worker: str, **more: object) -> None:
    """Always the same names of blocks, as if engines' hashes collided."""
    event = {
        "type": "BlockStored",
        "block_hashes": KEYS,
        "parent_block_hash": None,
        "token_ids": TOKENS,
        "block_size": 16,
        "medium": "GPU",
        **more,
    }
    brain.apply_message(worker, msgspec.msgpack.encode([1.0, [event], 0]))


def held(brain: Brain, **asked: object) -> dict[str, int]:
    request = RouteRequest(**({"model": "m", "tokens": [*TOKENS, 1]} | asked))  # type: ignore[arg-type]
    scores = brain.decide(request, 0.0, book=False).scores
    return {score.worker: score.hit_tokens for score in scores}


def brain_of(**models: str) -> Brain:
    brain = Brain()
    for name, model in models.items():
        brain.add_worker(Worker(id=name, model=model, block_size=16))
    return brain


@pytest.mark.parametrize(
    ("first", "then"), [({}, SALTED), (SALTED, {}), ({}, ADAPTED), (ADAPTED, SALTED)]
)
def test_two_workers_name_different_blocks_alike(
    first: dict[str, object], then: dict[str, object]
) -> None:
    brain = brain_of(a="m", b="m")
    told(brain, "a", **first)
    told(brain, "b", **then)
    asked: dict[str, dict[str, object]] = {
        "": {},
        "tenant": {"namespace": "tenant"},
        "tune": {"adapter": "tune"},
    }
    for what, request in asked.items():
        hits = held(brain, **request)
        for worker, said in (("a", first), ("b", then)):
            mine = "tune" if said == ADAPTED else "tenant" if said == SALTED else ""
            assert hits[worker] == (48 if mine == what else 0), (what, worker)
    removed = {"type": "BlockRemoved", "block_hashes": KEYS, "medium": "GPU"}
    brain.apply_message("b", msgspec.msgpack.encode([1.0, [removed], 0]))
    assert sum(sum(held(brain, **request).values()) for request in asked.values()) == 48


def test_one_worker_gives_a_name_twice() -> None:
    brain = brain_of(a="m")
    told(brain, "a")
    told(brain, "a", **SALTED)
    assert held(brain, namespace="tenant") == {"a": 48}
    assert held(brain, namespace="other") == held(brain, adapter="tenant") == {"a": 0}


def test_other_models_name_their_blocks_alike() -> None:
    brain = brain_of(a="m", b="other")
    told(brain, "a")
    assert held(brain, model="other") == {"b": 0}
    told(brain, "b", token_ids=[t + 1 for t in TOKENS])
    assert held(brain) == {"a": 48} and held(brain, model="other") == {"b": 0}
    moved = [*(t + 1 for t in TOKENS), 1]
    assert held(brain, model="other", tokens=moved) == {"b": 48}


def test_what_a_chain_begins_with_is_told_apart() -> None:
    seeds = [
        prefix_seed("m"),
        prefix_seed("m", "x"),
        prefix_seed("m", "", "x"),
        prefix_seed("mx"),
        prefix_seed("m", "ab", "c"),
        prefix_seed("m", "a", "bc"),
        prefix_seed("", "m"),
    ]
    assert len(np.unique(np.array(seeds, np.uint64))) == len(seeds)
