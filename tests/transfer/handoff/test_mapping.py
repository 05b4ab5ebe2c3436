"""Token by token, the mapping moves what it should: against a loop that knows nothing of ranges."""

import itertools
import random
from typing import Any

import numpy as np
import pytest

from moonpool.core.errors import BadInput, LayoutMismatch
from moonpool.transfer.handoff.layout import KVLayout, check_fit, sources_of
from moonpool.transfer.handoff.mapping import BlockMap

# As engines registered their caches (vLLM 0.32 on CPU with SmolLM2-135M; the others follow from
# the published shapes of Llama 3 8B, 70B and DeepSeek V2).
SMOLLM2_CPU = KVLayout(
    model="smollm2", dtype="bf16", layers=30, block_tokens=32, kv_heads=3, token_bytes=256,
    flavour="cpu-avx512",
)  # fmt: skip
LLAMA_8B = KVLayout(
    model="llama-8b", dtype="bf16", layers=32, block_tokens=16, kv_heads=8, token_bytes=512,
    order="HND",
)  # fmt: skip
MLA = KVLayout(
    model="deepseek", dtype="bf16", layers=60, block_tokens=64, kv_heads=1, token_bytes=1152,
    order="HND",
)  # fmt: skip


def shaped(base: KVLayout, **changes: Any) -> KVLayout:
    fields = {name: getattr(base, name) for name in base.__struct_fields__}
    return KVLayout(**(fields | changes))


def small(order: str, block_tokens: int, tp_size: int, tp_rank: int, kv_heads: int = 4) -> KVLayout:
    return KVLayout(
        model="m", dtype="f32", layers=1, block_tokens=block_tokens, kv_heads=kv_heads,
        token_bytes=2, order=order, tp_size=tp_size, tp_rank=tp_rank,  # type: ignore[arg-type]
    )  # fmt: skip


def at(layout: KVLayout, blocks: "list[int]", token: int, head: int) -> slice:
    """Where one token of one head lies."""
    block, row = blocks[token // layout.block_tokens], token % layout.block_tokens
    column, heads = head - layout.heads.start, len(layout.heads)
    unit = column * layout.block_tokens + row if layout.order == "HND" else row * heads + column
    begin = block * layout.block_bytes + unit * layout.token_bytes
    return slice(begin, begin + layout.token_bytes)


def stamp(token: int, head: int) -> bytes:
    return bytes([token % 251 + 1, head + 101])


GEOMETRIES = list(
    itertools.product(("HND", "NHD"), ((4, 4), (2, 8), (8, 4), (4, 6)), ((1, 1), (2, 1), (1, 4)))
)


@pytest.mark.parametrize(("order", "sizes", "ranks"), GEOMETRIES)
def test_every_token_of_every_head_arrives_and_nothing_else_is_touched(
    order: str, sizes: tuple[int, int], ranks: tuple[int, int]
) -> None:
    draw = random.Random(f"{order}{sizes}{ranks}")
    for target_rank in range(ranks[1]):
        target = small(order, sizes[1], ranks[1], target_rank)
        tokens = draw.randrange(17, 30)
        target_first = draw.randrange(3) * target.block_tokens
        last_block = -(-tokens // target.block_tokens)
        target_ids = draw.sample(range(20), last_block - target_first // target.block_tokens)
        memory = np.zeros(20 * target.block_bytes, dtype=np.uint8)
        expected = memory.copy()
        for source_rank in sources_of(small(order, sizes[0], ranks[0], 0), target):
            source = small(order, sizes[0], ranks[0], source_rank)
            source_ids = draw.sample(range(20), -(-tokens // source.block_tokens))
            held = np.zeros(20 * source.block_bytes, dtype=np.uint8)
            for token, head in itertools.product(range(tokens), source.heads):
                held[at(source, source_ids, token, head)] = list(stamp(token, head))
            plan = BlockMap(source, target)
            middle = target_first + plan.step_tokens
            middle = min(tokens, middle - middle % plan.step_tokens)
            for first, last in ((target_first, middle), (middle, tokens)):
                got = plan.ranges(
                    np.array(source_ids), np.array(target_ids), target_first, first, last
                )
                for far, near, size in zip(
                    got.target.tolist(), got.source.tolist(), got.lengths.tolist(), strict=True
                ):
                    memory[far : far + size] = held[near : near + size]
        skip = [0] * (target_first // target.block_tokens)
        for token, head in itertools.product(range(target_first, tokens), target.heads):
            expected[at(target, skip + target_ids, token, head)] = list(stamp(token, head))
        assert np.array_equal(memory, expected)


def test_whole_blocks_that_follow_each_other_at_both_ends_are_one_range() -> None:
    plan = BlockMap(LLAMA_8B, LLAMA_8B)
    got = plan.ranges(np.array([3, 4, 5, 9]), np.array([0, 1, 2, 3]), 0, 0, 64)
    assert got.lengths.tolist() == [3 * LLAMA_8B.block_bytes, LLAMA_8B.block_bytes]
    assert got.nbytes == 64 * 8 * 512


def test_a_recorded_cpu_cache_moves_whole_blocks_also_the_last() -> None:
    assert SMOLLM2_CPU.block_bytes == 24_576
    got = BlockMap(SMOLLM2_CPU, SMOLLM2_CPU).ranges(
        np.array([7, 2, 5]), np.array([1, 0]), 32, 32, 70
    )
    assert got.source.tolist() == [2 * 24_576, 5 * 24_576]
    assert got.target.tolist() == [24_576, 0]
    assert got.lengths.tolist() == [24_576, 24_576]


def test_decode_with_more_ranks_takes_its_heads_from_one_prefill_rank_each() -> None:
    wide = [shaped(LLAMA_8B, tp_size=4, tp_rank=rank) for rank in range(4)]
    assert [sources_of(shaped(LLAMA_8B, tp_size=2), one) for one in wide] == [
        {0: range(2)},
        {0: range(2, 4)},
        {1: range(4, 6)},
        {1: range(6, 8)},
    ]


def test_decode_with_fewer_ranks_gathers_from_several() -> None:
    found = sources_of(shaped(LLAMA_8B, tp_size=8), shaped(LLAMA_8B, tp_size=2, tp_rank=1))
    assert found == {4: range(4, 5), 5: range(5, 6), 6: range(6, 7), 7: range(7, 8)}


def test_replicas_share_the_work_and_each_head_comes_once() -> None:
    wide = shaped(LLAMA_8B, tp_size=16)
    for tp_rank in range(4):
        found = sources_of(wide, shaped(LLAMA_8B, tp_size=4, tp_rank=tp_rank))
        heads = [head for part in found.values() for head in part]
        assert heads == [2 * tp_rank, 2 * tp_rank + 1]
        assert {rank % 2 for rank in found} == {tp_rank % 2}
    assert sources_of(shaped(MLA, tp_size=4), shaped(MLA, tp_size=2, tp_rank=1)) == {1: range(1)}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"block_tokens": 16}, "block_tokens is 32 at the prefill side, 16 at decode's"),
        ({"tp_size": 3}, "tp_size is 1"),
        ({"flavour": "cpu-amx"}, "flavour is 'cpu-avx512'"),
        ({"model": "other"}, "model is 'smollm2'"),
        ({"dtype": "f32"}, "dtype"),
        ({"layers": 12}, "layers is 30 at the prefill side, 12 at decode's"),
        ({"parts": 2}, "parts"),
        ({"order": "HND"}, "order is 'opaque'"),
    ],
)
def test_what_cannot_be_mapped_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(LayoutMismatch, match=named):
        check_fit(SMOLLM2_CPU, shaped(SMOLLM2_CPU, **changes))


@pytest.mark.parametrize(
    "changes",
    [{"layers": 0}, {"tp_size": 2}, {"tp_rank": 1}, {"token_bytes": 2**40}, {"block_tokens": -1}],
)
def test_numbers_that_describe_no_memory_are_bad_input(changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        shaped(SMOLLM2_CPU, **changes).check()


@pytest.mark.parametrize(("first", "last"), [(0, 33), (16, 10), (40, 48)])
def test_tokens_outside_of_the_blocks_are_bad_input(first: int, last: int) -> None:
    plan = BlockMap(LLAMA_8B, LLAMA_8B)
    with pytest.raises(BadInput):
        plan.ranges(np.array([0, 1]), np.array([0]), 16, first, last)
