"""Wherever a prefix came from, the answer has the same bits; and what would give others has other
keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import moonpool
from moonpool.core.sections import MasterConfig
from moonpool.engine.request import Reuse
from moonpool.pool.cluster import Cluster
from tests.engine.sides import Side, node_of, same
from tests.engine.steps import BLOCK, CHUNK, prompt_of
from tests.engine.tiny import write_model

LENGTHS = [*range(CHUNK - 1, CHUNK + 3), *range(60, 70), 95, 96, 97, 160, 201, 333]
assert len(LENGTHS) == 20


def compare_lengths(make: Callable[..., Side], pool: moonpool.Pool, threads: int = 1) -> None:
    """Cold, from own pages, and from the pool, at all lengths: the same tokens and logits."""
    writer = make(pool, threads=threads)
    for seed, length in enumerate(LENGTHS):
        prompt = prompt_of(length, seed)
        tokens, logits, reuse = make(threads=threads).ask(prompt)
        assert reuse == Reuse()
        stored = writer.ask(prompt)
        local = writer.ask(prompt)
        writer.settle()
        read = make(pool, threads=threads).ask(prompt)
        there = (length - 1) // CHUNK * CHUNK
        assert stored[2] == Reuse()
        assert local[2] == Reuse(local_tokens=there)
        assert read[2] == Reuse(pool_tokens=there)
        for way in (stored, local, read):
            assert way[0] == tokens and same(way[1], logits), (length, way[2])


@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_bits_from_an_embedded_pool(
    sides: Callable[..., Side], pool: moonpool.Pool, threads: int
) -> None:
    compare_lengths(sides, pool, threads)


@pytest.mark.faults
def test_the_same_bits_from_a_pool_of_processes(sides: Callable[..., Side], tmp_path: Path) -> None:
    with (
        Cluster(MasterConfig(port=0, nodes_expected=1), [node_of(tmp_path)]) as cluster,
        moonpool.connect(cluster.address) as pool,
    ):
        compare_lengths(sides, pool)


def test_own_pages_then_the_pool(sides: Callable[..., Side], pool: moonpool.Pool) -> None:
    """The own pages reach to the second chunk, the pool further."""
    prompt = prompt_of(200)
    want = sides().ask(prompt)
    writer, reader = sides(pool), sides(pool)
    reader.ask(prompt[: 2 * CHUNK + 1])
    writer.ask(prompt)
    writer.settle()
    got = reader.ask(prompt)
    assert got[2] == Reuse(local_tokens=2 * CHUNK, pool_tokens=4 * CHUNK)
    assert got[0] == want[0] and same(got[1], want[1])
    again = reader.ask(prompt)
    assert again[2] == Reuse(local_tokens=6 * CHUNK) and same(again[1], want[1])


def test_chunks_of_several_blocks(tiny: Path, pool: moonpool.Pool) -> None:
    writer = Side(tiny, pool, chunk_tokens=3 * BLOCK)
    reader = Side(tiny, pool, chunk_tokens=3 * BLOCK)
    want = writer.ask(prompt_of(150))
    writer.settle()
    got = reader.ask(prompt_of(150))
    assert got[2] == Reuse(pool_tokens=144) and same(got[1], want[1])
    writer.close()
    reader.close()


@pytest.mark.parametrize(
    "changes",
    [{"block_size": 2 * BLOCK}, {"chunk_tokens": 2 * CHUNK}, {"dtype": "float32"}],
    ids=["blocks", "chunks", "dtype"],
)
def test_what_would_not_fit_has_other_keys(
    sides: Callable[..., Side], pool: moonpool.Pool, changes: dict[str, object]
) -> None:
    writer = sides(pool)
    writer.ask(prompt_of(100))
    writer.settle()
    other = sides(pool, **changes)
    assert other.ask(prompt_of(100))[2] == Reuse()
    assert other.figure("pool_loads_failed") == 0


def test_another_model_has_other_keys(
    sides: Callable[..., Side], pool: moonpool.Pool, tmp_path: Path
) -> None:
    writer = sides(pool)
    writer.ask(prompt_of(100))
    writer.settle()
    other = Side(write_model(tmp_path / "other", seed=9), pool)
    assert other.ask(prompt_of(100))[2] == Reuse()
    other.close()


def test_salts_share_nothing(sides: Callable[..., Side], pool: moonpool.Pool) -> None:
    writer, reader = sides(pool), sides(pool)
    writer.ask(prompt_of(100), salt="a")
    writer.settle()
    assert reader.ask(prompt_of(100))[2] == Reuse()
    assert reader.ask(prompt_of(100), salt="b")[2] == Reuse()
    assert reader.ask(prompt_of(100), salt="a")[2] == Reuse(pool_tokens=96)


def test_the_number_of_threads_changes_no_whole_chunk(
    sides: Callable[..., Side], pool: moonpool.Pool
) -> None:
    """Each is computed by one thread, however many there are."""
    prompt = prompt_of(6 * CHUNK)
    blocks = []
    for threads in (1, 2, 4):
        side = sides(pool, threads=threads)
        side.ask(prompt, salt=str(threads))
        side.settle()
        found = sorted(pool.list(), key=lambda one: one.key)
        blocks.append({pool.get(one.key) for one in found})
        pool.remove_prefix("mp1/")
    assert len(blocks[0]) == 12 and blocks[0] == blocks[1] == blocks[2]
