"""KV events in the words of engines: vLLM's maps and arrays, SGLang's, and what is wrong with some.

The map form is what vLLM 0.32 sends (recorded in the field notes), the arrays what it sent before
June 2026 and what SGLang sends.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from moonpool.cache import CacheManager, PageAllocator, encode_batch
from moonpool.core.errors import BadInput
from moonpool.router import RouteRequest, Worker, prefix_hashes, prefix_seed
from moonpool.router.index import Applied
from tests.router.told import KEYS, TOKENS, as_array, as_map, brain_with, held, send


@pytest.mark.parametrize("form", [as_map, as_array])
def test_stored_and_removed(form: object) -> None:
    brain = brain_with()
    applied = send(brain, form(0, 4), form(4, 6))  # type: ignore[operator]
    assert (applied.events, applied.stored, applied.orphaned) == (2, 10, 0)
    assert held(brain) == 160
    assert send(brain, {"type": "BlockRemoved", "block_hashes": KEYS[8:], "medium": "GPU"}).removed
    assert held(brain) == 128
    assert send(brain, ["BlockRemoved", KEYS[7:8], "GPU"]).removed == 1
    assert held(brain) == 112
    assert send(brain, ["AllBlocksCleared"]).cleared_events == 1
    assert held(brain) == 0


def test_hashes_of_32_bytes_are_the_integers_in_their_last_eight() -> None:
    brain = brain_with()
    wide = [bytes(24) + key.to_bytes(8, "big") for key in KEYS]
    send(brain, as_map(block_hashes=wide))
    send(brain, as_map(8, 2, parent_block_hash=KEYS[7]))
    assert send(brain, ["BlockRemoved", [KEYS[9]], "GPU"]).removed == 1
    assert held(brain) == 144


def test_fields_nobody_knows_are_passed_over() -> None:
    brain = brain_with()
    send(brain, as_map(locality={"rack": [1, 2.5, None, True]}, ownership="x"))
    send(brain, {"type": "SomethingNew", "blocks": 3})
    assert held(brain) == 160


def test_tiers_and_words_without_tokens() -> None:
    brain = brain_with()
    send(brain, as_map())
    send(brain, as_map(6, 4, token_ids=[], block_size=16, medium="CPU"))
    send(brain, ["BlockRemoved", KEYS[6:], "GPU"])
    score = brain.decide(RouteRequest(model="m", tokens=[*TOKENS, 1]), 0.0, book=False).scores[0]
    assert (score.device_tokens, score.hit_tokens) == (96, 160)
    assert send(brain, as_map(0, 1, block_hashes=[5], token_ids=[], medium="CPU")).unknown == 1


def test_a_salt_an_adapter_and_an_image_are_parts_of_the_identity() -> None:
    brain = brain_with()
    send(brain, as_map(0, 3, extra_keys=[["tenantA"], None, None]))
    assert held(brain) == 0
    assert held(brain, namespace="tenantA") == 48
    adapter = as_map(0, 3, block_hashes=[1, 2, 3], lora_name="tune", extra_keys=[["tune"]] * 3)
    send(brain, adapter)
    assert held(brain, adapter="tune") == 48
    send(brain, as_map(0, 3, block_hashes=[4, 5, 6], extra_keys=[None, [["mm", 7]], None]))
    assert held(brain) == 16


def test_two_models_never_share() -> None:
    brain = brain_with()
    brain.add_worker(Worker(id="v", model="other", block_size=16))
    send(brain, as_map())
    brain.apply_message("v", msgspec.msgpack.encode([1.0, [as_map(4, 6)], 0]))
    assert held(brain, model="other") == 0
    assert brain.index.stat()["orphan_blocks"] == 6


def test_another_block_size_is_refused_aloud() -> None:
    brain = brain_with(block_size=32)
    assert send(brain, as_map()).mismatched_events == 1
    assert held(brain) == 0
    assert "block_size" in brain.fleet.members["w"].problems["block size"]


def test_token_ids_of_every_width_an_encoder_may_choose() -> None:
    """Also wider ones than needed, and one after another in any order up to the message's end."""
    forms = [
        lambda token: bytes([token % 128]),
        lambda token: b"\xcc" + bytes([token % 256]),
        lambda token: b"\xcd" + token.to_bytes(4, "big")[-2:],
        lambda token: b"\xce" + token.to_bytes(4, "big"),
        lambda token: b"\xcf" + token.to_bytes(8, "big"),
        lambda token: b"\xd1" + (token % 2**15).to_bytes(2, "big"),
        lambda token: b"\xd3" + token.to_bytes(8, "big"),
    ]
    rng = np.random.default_rng(3)
    print("seed 3")
    for chosen in (rng.integers(0, 4, 160), rng.integers(0, len(forms), 160)):
        coded = [
            forms[form](int(token))
            for form, token in zip(chosen, rng.integers(0, 2**32, 160), strict=True)
        ]
        tokens = [msgspec.msgpack.decode(code) for code in coded]
        brain = brain_with()
        ids = msgspec.Raw(b"\xdc\x00\xa0" + b"".join(coded))
        name, event = "token_ids", as_map()
        del event[name]
        send(brain, event | {name: ids})
        assert held(brain, tokens) == 160


def test_events_of_one_message_count_in_their_order() -> None:
    """As if each came in a message of its own."""
    print("seed 5")
    rng = np.random.default_rng(5)
    for _ in range(60):
        events: list[object] = []
        for _ in range(int(rng.integers(2, 9))):
            first, count = int(rng.integers(0, 8)), int(rng.integers(1, 3))
            keys = {"block_hashes": KEYS[first : first + count], "medium": "GPU"}
            match int(rng.integers(0, 5)):
                case 0:
                    events.append({"type": "BlockRemoved"} | keys)
                case 1:  # a tier's word about blocks that are known
                    events.append({"type": "BlockStored", "token_ids": []} | keys)
                case _:
                    events.append(as_map(first, count))
        together, apart = brain_with(), brain_with()
        send(together, *events)
        for event in events:
            send(apart, event)
        assert held(together) == held(apart), events
        assert together.index.stat() == apart.index.stat(), events


def test_tokens_of_an_event_that_needs_none_may_be_anything() -> None:
    brain = brain_with()
    applied = send(brain, as_map(type="Rewarmed", token_ids=["x"]), as_map())
    assert (applied.ignored_events, applied.malformed_events) == (1, 0)
    assert send(brain, as_map(block_size=32, token_ids=["x"])).mismatched_events == 1
    assert held(brain) == 160


def test_an_unknown_block_size_is_learnt() -> None:
    brain = brain_with(block_size=0)
    send(brain, as_map(0, 5, block_size=32, token_ids=TOKENS.tolist()))
    assert brain.fleet.members["w"].block_size == 32
    assert held(brain) == 160


def test_only_groups_that_keep_every_token_make_a_prefix() -> None:
    brain = brain_with()
    send(brain, as_map(0, 4, group_idx=0, kv_cache_spec_kind="full_attention"))
    assert send(brain, as_map(group_idx=1, kv_cache_spec_kind="sliding_window")).ignored_events
    assert held(brain) == 64
    send(brain, as_map(0, 2, group_idx=2, kv_cache_spec_kind="mla_attention"))
    assert held(brain) == 32  # both groups have to have it


def test_ranks_have_caches_of_their_own() -> None:
    brain = brain_with(ranks=2)
    send(brain, as_map(), rank=1)
    decision = brain.decide(RouteRequest(model="m", tokens=[*TOKENS, 1]), 0.0, book=False)
    assert (decision.rank, decision.predicted_hit_tokens) == (1, 160)
    with pytest.raises(BadInput, match="rank 2"):
        send(brain, as_map(), rank=2)


@pytest.mark.parametrize(
    "event",
    [
        as_map(token_ids=[1, 2, 3]),
        as_map(token_ids=["x"] * 160),
        as_map(token_ids=[2**40] * 160),
        as_map(token_ids=[-1] * 160),
        as_map(token_ids=[1] * 159 + [None]),
        as_map(token_ids="x"),
        as_map(block_hashes=None),
        as_map(block_hashes=[b"abc"]),
        as_map(block_size=1 << 30),
        ["BlockStored"],
        [],
        7,
        {"type": "CacheDigest", "medium": "GPU", "counts": b"", "digests": b""},
        {"type": "RangesCleared", "medium": "GPU", "ranges": b"abc"},
    ],
)
def test_an_event_that_does_not_fit_is_counted_and_the_next_one_applied(event: object) -> None:
    brain = brain_with()
    applied = send(brain, event, as_map())
    assert applied.malformed_events == 1
    assert held(brain) == 160


@pytest.mark.parametrize(
    "message", [b"", b"\xc1", b"\x92\x01", b"\x93\x01\xdd\xff\xff\xff\xff\x00"]
)
def test_what_is_no_message_is_refused(message: bytes) -> None:
    with pytest.raises(BadInput, match="no KV event message"):
        brain_with().apply_message("w", message)


def test_moonpools_own_form_carries_own_hashes() -> None:
    brain = brain_with()
    hashes = prefix_hashes(TOKENS, 16, prefix_seed("m"))
    send(brain, {"type": "BlockStored", "hashes": hashes.tobytes(), "medium": "GPU"})
    assert held(brain) == 160
    send(brain, {"type": "BlockRemoved", "hashes": hashes[5:].tobytes(), "medium": "GPU"})
    assert brain.index.held(brain.fleet.members["w"].places[0], 0) == 5


def test_the_events_of_our_own_cache_manager() -> None:
    """A real cache tells, through its own encoder, what it holds: more than fits, so it evicts."""
    brain = brain_with()
    manager = CacheManager(PageAllocator(24), 16, events_max=1000)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, 9, 16 * 9 + 1).astype(np.uint32) for _ in range(6)]
    for prompt in prompts:
        sequence = manager.sequence(prompt, len(prompt) + 1)
        assert manager.admit(sequence)
        manager.grow(sequence, len(prompt))
        manager.commit(sequence, len(prompt))
        manager.finish(sequence)
        brain.apply_message("w", encode_batch(manager.take_events(), 1.0))
        for one in prompts:
            assert held(brain, one) == manager.tree.lookup(one)


def test_a_block_said_to_be_lost_is_no_longer_predicted() -> None:
    """A prediction stands until the worker's own event comes; losing the block is one."""
    brain = brain_with(publishes_events=True)
    send(brain, as_map(0, 10))
    ask = RouteRequest(model="m", tokens=[*TOKENS, 1])
    brain.decide(ask, 0.0)
    send(brain, {"type": "BlockRemoved", "block_hashes": KEYS[8:], "medium": "GPU"})
    assert held(brain) == 128


def test_with_a_name_of_the_workers_own_too() -> None:
    brain = brain_with(publishes_events=True)
    brain.add_worker(Worker(id="other", model="m", block_size=16))
    brain.apply_message("other", msgspec.msgpack.encode([1.0, [as_map()], 0]))
    own = [key ^ 0xFF00 for key in KEYS]
    send(brain, as_map(block_hashes=own))
    brain.remove_worker("other")
    brain.decide(RouteRequest(model="m", tokens=[*TOKENS, 1]), 0.0)
    send(brain, {"type": "BlockRemoved", "block_hashes": own[8:], "medium": "GPU"})
    assert held(brain) == 128


def test_what_was_guessed_before_the_first_event_is_forgotten() -> None:
    brain = brain_with(publishes_events=True)
    brain.decide(RouteRequest(model="m", tokens=[*TOKENS, 1]), 0.0)
    assert held(brain) == 160
    send(brain, ["AllBlocksCleared"])
    assert held(brain) == 0
    brain = brain_with(publishes_events=True)
    brain.decide(RouteRequest(model="m", tokens=[*TOKENS, 1]), 0.0)
    send(brain, as_map(0, 4))
    assert held(brain) == 64


@pytest.mark.parametrize("form", [as_map, as_array])
def test_the_pool_names_blocks_as_an_engine_did(form: object) -> None:
    """It knows no tokens; what no engine has told of is passed over."""
    brain = brain_with()
    brain.add_worker(Worker(id="idle", model="m", block_size=16))
    send(brain, as_map())

    def told(*events: object) -> Applied:
        return brain.intake.apply_pool_message(msgspec.msgpack.encode([1.0, list(events), 0]))

    def of_pool() -> int:
        ask = RouteRequest(model="m", tokens=[*TOKENS.tolist(), 1])
        scores = brain.decide(ask, 0.0, book=False).scores
        return next(score.pool_tokens for score in scores if score.worker == "idle")

    bare = as_map() | {"token_ids": [], "medium": "CPU"}
    if form is as_array:
        names = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id")
        told([bare[name] for name in (*names, "medium")])
    else:
        told(bare)
    assert of_pool() == 160
    told({"type": "BlockRemoved", "block_hashes": KEYS[6:], "medium": "CPU"})
    assert of_pool() == 96
    told(bare | {"block_hashes": [7, 8]})
    assert of_pool() == 96
    told(bare | {"block_hashes": [7, 8], "lora_name": "AllBlocksCleared"})  # an adapter of any name
    assert of_pool() == 96
    told({"type": "AllBlocksCleared"} if form is as_map else ["AllBlocksCleared"], bare)
    assert of_pool() == 160
    brain.intake.forget_pool()
    assert of_pool() == 0
    nested = b"\x93\xcb" + bytes(8) + b"\x91" + b"\x91" * 200_000 + b"\xc0\x00"
    for message in (b"?", nested):
        with pytest.raises(BadInput):
            brain.intake.apply_pool_message(message)
