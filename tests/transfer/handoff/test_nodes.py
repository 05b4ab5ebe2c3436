"""Two nodes in one process, over real sockets: what arrives, what is refused, what is told."""

import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from moonpool.core.errors import BadConfig, BadInput, Closed
from moonpool.core.sections import HandoffConfig
from moonpool.transfer.handoff import DecodeNode, KVMemory, PartMemory, PrefillNode
from tests.transfer.handoff.ranks import (
    BLOCK_TOKENS,
    BLOCKS,
    LAYERS,
    Inbox,
    compute,
    config,
    layout,
    memory_of,
    stamp,
    until,
)


class Pair:
    """A prefill and a decode rank, started."""

    def __init__(self, prefill: dict[str, Any], decode: dict[str, Any], **settings: Any) -> None:
        memory, self.source = memory_of(layout(**prefill))
        self.prefill = PrefillNode("p0", memory, config(**settings))
        memory, self.target = memory_of(layout(**decode))
        self.decode = DecodeNode("d0", memory, config(**settings))
        self.remote = self.prefill.start()
        self.released, self.settled = Inbox(self.prefill), Inbox(self.decode)

    def close(self) -> None:
        self.decode.close()
        self.prefill.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair({}, {}, verify=True)
    yield made
    made.close()


def arrived(pair: Pair, transfer: str, blocks: list[int], first: int = 0) -> bool:
    size = pair.target.shape[3]
    return all(
        np.array_equal(pair.target[layer, 0, block], stamp(transfer, layer, first + at, size))
        for layer in range(LAYERS)
        for at, block in enumerate(blocks)
    )


def test_a_prompt_arrives_layer_by_layer(pair: Pair) -> None:
    pair.prefill.open("t", 20, [3, 1, 7])
    pair.decode.announce("t", pair.remote, 0, 20, [9, 2, 4])
    compute(pair.prefill, pair.source, "t", [3, 1, 7], 20, layers=range(2))
    until(lambda: pair.decode.progress("t") == {0: 20, 1: 20})
    assert not pair.settled.has("t")
    compute(pair.prefill, pair.source, "t", [3, 1, 7], 20, layers=range(2, LAYERS))
    assert pair.settled.settled("t").ok
    assert pair.released.released("t").ok
    assert arrived(pair, "t", [9, 2, 4])
    others = np.delete(pair.target, [9, 2, 4], axis=2)
    assert not others.any()


def test_decode_may_come_first_or_last(pair: Pair) -> None:
    pair.decode.announce("early", pair.remote, 0, 8, [0], engine="p0")
    pair.prefill.open("early", 8, [0])
    compute(pair.prefill, pair.source, "early", [0], 8)
    pair.prefill.open("late", 8, [1])
    compute(pair.prefill, pair.source, "late", [1], 8)
    pair.decode.claim("late", pair.remote)
    assert pair.settled.settled("early").ok
    pair.decode.announce("late", pair.remote, 0, 8, [1])
    assert pair.settled.settled("late").ok
    assert arrived(pair, "early", [0])
    assert arrived(pair, "late", [1])


def test_what_decode_holds_already_is_not_sent(pair: Pair) -> None:
    pair.decode.announce("t", pair.remote, 16, 30, [5, 6])
    pair.prefill.open("t", 30, [0, 1, 2, 3])
    compute(pair.prefill, pair.source, "t", [0, 1, 2, 3], 30)
    assert pair.settled.settled("t").ok
    assert arrived(pair, "t", [5, 6], first=2)


@pytest.mark.parametrize("tokens", [0, 1, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1])
def test_prompts_around_a_block_leave_nothing_pending(pair: Pair, tokens: int) -> None:
    blocks = list(range(-(-tokens // BLOCK_TOKENS)))
    pair.prefill.open("t", tokens, blocks)
    pair.decode.announce("t", pair.remote, 0, tokens, blocks)
    compute(pair.prefill, pair.source, "t", blocks, tokens)
    assert pair.settled.settled("t").ok
    assert pair.released.released("t").ok
    assert not pair.prefill.machine.exports
    assert not pair.decode.machine.imports


def test_a_full_local_hit_at_decode_frees_the_prefill_blocks(pair: Pair) -> None:
    pair.decode.announce("t", pair.remote, 16, 16, [])
    pair.prefill.open("t", 16, [0, 1])
    assert pair.released.released("t").ok
    assert pair.settled.settled("t").ok


def test_chunks_go_out_as_whole_blocks(pair: Pair) -> None:
    pair.decode.announce("t", pair.remote, 0, 30, [5, 6, 7, 8])
    pair.prefill.open("t", 30, [0, 1])
    compute(pair.prefill, pair.source, "t", [0, 1], 13)
    until(lambda: pair.decode.progress("t") == dict.fromkeys(range(LAYERS), 8))
    pair.prefill.extend("t", [0, 1, 2, 3])
    compute(pair.prefill, pair.source, "t", [0, 1, 2, 3], 30, first=8)
    assert pair.settled.settled("t").ok
    assert arrived(pair, "t", [5, 6, 7, 8])


def test_bytes_changed_on_the_way_are_found_when_asked_for(pair: Pair) -> None:
    pair.decode.announce("t", pair.remote, 0, 8, [0])
    pair.prefill.open("t", 8, [0])
    compute(pair.prefill, pair.source, "t", [0], 8, layers=range(3))
    until(lambda: len(pair.decode.progress("t")) == 3)
    pair.target[1, 0, 0, 5] ^= 1
    compute(pair.prefill, pair.source, "t", [0], 8, layers=range(3, 4))
    settled = pair.settled.settled("t")
    assert (settled.ok, settled.code) == (False, "corrupt")


@pytest.mark.parametrize("stage", ["before", "open", "pushing"])
def test_an_abort_at_prefill_is_told_with_its_reason(pair: Pair, stage: str) -> None:
    if stage != "before":
        pair.prefill.open("t", 8, [0])
    if stage == "pushing":
        pair.decode.announce("t", pair.remote, 0, 8, [0])
        compute(pair.prefill, pair.source, "t", [0], 8, layers=range(2))
        until(lambda: len(pair.decode.progress("t")) == 2)
    pair.prefill.fail("t", "cancelled", "the client went away")
    if stage != "pushing":
        pair.decode.announce("t", pair.remote, 0, 8, [0])
    settled = pair.settled.settled("t")
    assert (settled.ok, settled.code, settled.text) == (False, "cancelled", "the client went away")
    if stage != "before":
        assert not pair.released.released("t").ok


@pytest.mark.parametrize("stage", ["queued", "claimed", "announced", "pushing"])
def test_an_abort_at_decode_gives_both_their_blocks_back(pair: Pair, stage: str) -> None:
    pair.prefill.open("t", 8, [0])
    if stage != "queued":
        pair.decode.claim("t", pair.remote)
    if stage in ("announced", "pushing"):
        pair.decode.announce("t", pair.remote, 0, 8, [0])
    if stage == "pushing":
        compute(pair.prefill, pair.source, "t", [0], 8, layers=range(2))
        until(lambda: len(pair.decode.progress("t")) == 2)
    pair.decode.cancel("t", remote=pair.remote)
    if stage != "queued":
        assert not pair.settled.settled("t").ok
    # Told at once, not found out by the end of a lease.
    assert pair.released.released("t").code == "cancelled"
    before = pair.target.copy()
    compute(pair.prefill, pair.source, "t", [0], 8)
    pair.prefill.open("next", 8, [1])
    pair.decode.announce("next", pair.remote, 0, 8, [1])
    compute(pair.prefill, pair.source, "next", [1], 8)
    assert pair.settled.settled("next").ok
    assert np.array_equal(pair.target[:, :, 0], before[:, :, 0])


def test_a_request_that_never_comes_ends_by_itself() -> None:
    pair = Pair({}, {}, expect_ms=100, hold_ms=100)
    pair.decode.announce("ghost", pair.remote, 0, 8, [0])
    assert pair.settled.settled("ghost").code == "deadline_exceeded"
    pair.prefill.open("orphan", 8, [0])
    assert pair.released.released("orphan").code == "deadline_exceeded"
    pair.close()


@pytest.mark.parametrize(
    ("decode", "named"),
    [
        ({"model": "other"}, "model is 'stamped' at the prefill side, 'other' at decode's"),
        ({"block_tokens": 16}, "block_tokens is 8 at the prefill side, 16 at decode's"),
        ({"dtype": "bf16"}, "dtype"),
        ({"layers": 5}, "layers is 4 at the prefill side, 5 at decode's"),
    ],
)
def test_layouts_that_do_not_fit_are_refused_with_both_values(
    decode: dict[str, Any], named: str
) -> None:
    pair = Pair({}, decode)
    pair.decode.announce("t", pair.remote, 0, 8, [0])
    settled = pair.settled.settled("t")
    assert settled.code == "layout_mismatch"
    assert named in settled.text
    pair.close()


def test_other_block_sizes_are_mapped_where_the_order_is_known() -> None:
    shape = {"order": "HND", "kv_heads": 2, "token_bytes": 16}
    pair = Pair(shape, shape | {"block_tokens": 4}, verify=True)
    pair.source[:] = np.arange(pair.source.size, dtype=np.uint32).reshape(pair.source.shape) % 251
    pair.prefill.open("t", 12, [2, 0])
    pair.decode.announce("t", pair.remote, 0, 12, [4, 1, 3])
    for layer in range(LAYERS):
        pair.prefill.computed([("t", 12)], layer)
    assert pair.settled.settled("t").ok
    mine = pair.source.reshape(LAYERS, BLOCKS, 2, 8, 16)[:, [2, 0]]
    rows = mine.transpose(0, 2, 1, 3, 4).reshape(LAYERS, 2, 16, 16)[:, :, :12]
    theirs = pair.target.reshape(LAYERS, BLOCKS, 2, 4, 16)[:, [4, 1, 3]]
    assert np.array_equal(theirs.transpose(0, 2, 1, 3, 4).reshape(LAYERS, 2, 12, 16), rows)
    pair.close()


def test_another_prompt_under_the_same_id_is_refused(pair: Pair) -> None:
    pair.prefill.open("t", 8, [0], prompt="one")
    pair.decode.announce("t", pair.remote, 0, 8, [0], prompt="two")
    assert pair.settled.settled("t").code == "bad_input"
    assert pair.released.released("t").code == "bad_input"


def test_another_engine_at_the_address_is_named(pair: Pair) -> None:
    pair.decode.announce("t", pair.remote, 0, 8, [0], engine="p7")
    settled = pair.settled.settled("t")
    assert settled.code == "peer_restarted"
    assert "'p0'" in settled.text and "'p7'" in settled.text


def test_a_restarted_prefill_worker_may_have_another_layout() -> None:
    shape = {"order": "HND", "kv_heads": 2, "token_bytes": 16}
    pair = Pair(shape, shape, verify=True)
    for block_tokens in (8, 4):
        memory, source = memory_of(layout(**(shape | {"block_tokens": block_tokens})))
        source[:] = block_tokens
        if block_tokens == 4:
            port = int(pair.remote.rpartition(":")[2])
            pair.prefill.close()
            pair.prefill = PrefillNode("p1", memory, config(verify=True, port=port))
            assert pair.prefill.start() == pair.remote
            until(lambda: pair.decode.counts.get("withdrawn") == 1)
        else:
            pair.source[:] = block_tokens
        name = f"t{block_tokens}"
        pair.prefill.open(name, 12, [2, 0, 1])
        pair.decode.announce(name, pair.remote, 0, 12, [4, 1])
        for layer in range(LAYERS):
            pair.prefill.computed([(name, 12)], layer)
        assert pair.settled.settled(name).ok
        assert (pair.target[0, 0, 4] == block_tokens).all()
    pair.close()


def test_nobody_at_the_address_is_told_at_once() -> None:
    memory, _ = memory_of(layout())
    decode = DecodeNode("d0", memory, config())
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        remote = f"127.0.0.1:{sock.getsockname()[1]}"
    decode.announce("t", remote, 0, 8, [0])
    assert Inbox(decode).settled("t").code == "unreachable"
    decode.close()


def test_a_wrong_token_is_refused() -> None:
    pair = Pair({}, {}, token="right")
    memory, _ = memory_of(layout())
    stranger = DecodeNode("d1", memory, config(token="wrong"))
    stranger.announce("t", pair.remote, 0, 8, [0])
    assert Inbox(stranger).settled("t").code == "refused"
    stranger.close()
    pair.close()


def test_garbage_on_the_side_channel_closes_that_connection_only(pair: Pair) -> None:
    host, port = pair.remote.split(":")
    for garbage in (b"", b"x", b"\0" * 4096, b"MOON" + b"\xff" * 60):
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(garbage)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
    pair.prefill.open("t", 8, [0])
    pair.decode.announce("t", pair.remote, 0, 8, [0])
    compute(pair.prefill, pair.source, "t", [0], 8)
    assert pair.settled.settled("t").ok


def test_blocks_that_prefill_cannot_reach_are_refused_before_anything_is_written(
    pair: Pair,
) -> None:
    pair.prefill.open("t", 8, [0])
    compute(pair.prefill, pair.source, "t", [0], 8)
    pair.decode.announce("t", pair.remote, 0, 8, [BLOCKS])
    assert pair.settled.settled("t").code == "unreachable"
    assert not pair.target.any()


def test_two_decode_workers_share_a_prefill_worker_and_a_transfer_belongs_to_one() -> None:
    pair = Pair({}, {})
    memory, _ = memory_of(layout())
    other = DecodeNode("d1", memory, config())
    inbox = Inbox(other)
    pair.decode.announce("mine", pair.remote, 0, 8, [0])
    until(lambda: "mine" in pair.prefill.machine.exports)
    other.announce("mine", pair.remote, 0, 8, [0])
    assert inbox.settled("mine").code == "refused"
    other.announce("other", pair.remote, 0, 8, [0])
    for transfer, block in (("mine", 0), ("other", 1)):
        pair.prefill.open(transfer, 8, [block])
        compute(pair.prefill, pair.source, transfer, [block], 8)
    assert pair.settled.settled("mine").ok
    assert inbox.settled("other").ok
    other.close()
    pair.close()


def test_blocks_that_a_worker_offers_for_anothers_transfer_are_never_written_to() -> None:
    """It claimed the transfer; a second worker announces it with blocks of its own."""
    pair = Pair({}, {})
    memory, target = memory_of(layout())
    other = DecodeNode("d1", memory, config())
    pair.decode.claim("t", pair.remote)
    until(lambda: "t" in pair.prefill.machine.exports)
    other.announce("t", pair.remote, 0, 8, [5])
    assert Inbox(other).settled("t").code == "refused"
    pair.prefill.open("t", 8, [0])
    pair.decode.announce("t", pair.remote, 0, 8, [3])
    compute(pair.prefill, pair.source, "t", [0], 8)
    assert pair.settled.settled("t").ok
    assert arrived(pair, "t", [3])
    assert not pair.target[:, :, 5].any() and not target.any()
    other.close()
    pair.close()


def test_who_connects_and_says_nothing_is_cut_off() -> None:
    pair = Pair({}, {})
    pair.prefill.greet_s = 0.1
    host, port = pair.remote.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        assert sock.recv(1) == b""
    pair.close()


def test_a_closed_node_says_so() -> None:
    pair = Pair({}, {})
    pair.close()
    with pytest.raises(Closed):
        pair.prefill.open("t", 8, [0])
    with pytest.raises(BadInput):
        pair.decode.announce("t", "nonsense", 0, 8, [0])


def test_leases_shorter_than_two_beats_and_open_doors_are_bad_config() -> None:
    with pytest.raises(BadConfig, match="two beats"):
        HandoffConfig(lease_ms=300, beat_ms=200).check()
    with pytest.raises(BadConfig, match="token"):
        HandoffConfig(host="0.0.0.0").check()


def test_memory_that_does_not_hold_its_blocks_is_bad_input() -> None:
    buffer = np.zeros(100, dtype=np.uint8)
    shape = layout(layers=1)
    with pytest.raises(BadInput, match="do not fit"):
        KVMemory(shape, 2, [[PartMemory(buffer, 0, shape.block_bytes)]])
    with pytest.raises(BadInput, match="the layout has 1 of 1"):
        KVMemory(shape, 0, [])
