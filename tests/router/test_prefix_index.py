"""The native prefix index against a naive one, and what it does with events out of order."""

from __future__ import annotations

import random
from collections.abc import Sequence

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from moonpool import _core
from tests.router.naive_index import ALL_SLOTS, DEVICE_SLOTS, HOST_SLOTS, NaiveIndex

PLACES = np.arange(6, dtype=np.int64)
BYTES = 1 << 24


def column(hashes: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(hashes, np.uint64)


def chain(tag: int, length: int, before: int = 0) -> list[int]:
    """Hashes of a chain; equal tags begin alike."""
    tokens = np.full(length, tag, np.uint32)
    return [int(h) for h in _core.block_hashes_u64(tokens, 1, before)]


def depth(index: _core.PrefixIndex, hashes: Sequence[int], place: int) -> int:
    depths, _ = index.find(column(hashes), np.array([place], np.int64))
    return int(depths[0][0])


class TestSemantics:
    """What a lost, late, repeated or early event must not do."""

    blocks = chain(1, 8)

    def index(self) -> _core.PrefixIndex:
        index = _core.PrefixIndex(BYTES)
        index.store(1, 0, column(self.blocks))
        return index

    def test_a_middle_block_removed_and_stored_again(self) -> None:
        index = self.index()
        index.remove(1, 0, column(self.blocks[3:4]))
        assert depth(index, self.blocks, 1) == 3
        index.store(1, 0, column(self.blocks[3:4]), self.blocks[2])
        assert depth(index, self.blocks, 1) == 8

    def test_a_lost_event_costs_what_it_spoke_of_until_it_comes(self) -> None:
        index = self.index()
        index.store(2, 0, column(self.blocks[4:]), self.blocks[3])
        assert depth(index, self.blocks, 2) == 0
        index.store(2, 0, column(self.blocks[:4]))
        assert depth(index, self.blocks, 2) == 8

    def test_a_late_event_is_no_worse_than_a_timely_one(self) -> None:
        index = _core.PrefixIndex(BYTES)
        index.store(2, 0, column(self.blocks[4:]), self.blocks[3])
        assert depth(index, self.blocks, 2) == 0
        index.store(2, 0, column(self.blocks[:4]))
        assert depth(index, self.blocks, 2) == 8

    def test_a_repeated_store_counts_once(self) -> None:
        index = self.index()
        index.store(1, 0, column(self.blocks))
        assert (len(index), index.held(1, 0)) == (8, 8)
        assert index.remove(1, 0, column(self.blocks[7:])) == 1
        assert index.remove(1, 0, column(self.blocks[7:])) == 0
        assert depth(index, self.blocks, 1) == 7

    def test_a_removal_takes_no_other_holders_copy(self) -> None:
        index = self.index()
        index.store(2, 0, column(self.blocks))
        index.store(1, 1, column(self.blocks))  # the host's copy of the same worker
        index.remove(1, 0, column(self.blocks))
        assert depth(index, self.blocks, 1) == 0
        assert depth(index, self.blocks, 2) == 8
        depths, _ = index.find(column(self.blocks), np.array([1], np.int64))
        assert depths[1].tolist() == [8]


def test_tiers_continue_each_other() -> None:
    blocks = chain(1, 9)
    index = _core.PrefixIndex(BYTES)
    index.store(1, 0, column(blocks[:4]))
    index.store(1, 1, column(blocks[3:6]), blocks[2])
    index.store(1, 2, column(blocks[6:8]), blocks[5])
    index.store(0, 0, column(blocks))
    depths, pool = index.find(column(blocks), np.array([1, 2], np.int64))
    assert depths.tolist() == [[4, 0], [6, 0], [8, 0]]
    assert pool == 9


def test_dropping_a_place_leaves_the_others() -> None:
    index = _core.PrefixIndex(BYTES)
    for place in (1, 2, 3):
        index.store(place, 0, column(chain(1, 20)))
        index.store(place, 0, column(chain(10 + place, 20)))
    index.drop(2)
    assert [depth(index, chain(1, 20), p) for p in (1, 2, 3)] == [20, 0, 20]
    assert (len(index), index.held(2, 0)) == (60, 0)
    index.drop(1)
    index.drop(3)
    assert len(index) == 0


def test_churn_leaves_nothing_behind() -> None:
    index = _core.PrefixIndex(BYTES)
    index.store(1, 0, column(chain(1, 32)))
    end = chain(1, 32)[-1]
    for turn in range(6):
        tails = [chain(100 + turn * 300 + k, 16, end) for k in range(300)]
        for tail in tails:
            index.store(1, 0, column(tail), end)
        for tail in tails:
            index.remove(1, 0, column(tail[::-1]))
        if turn == 1:
            settled = index.stat()["memory_bytes"]
    stat = index.stat()
    assert (stat["blocks"], stat["entries"], stat["torn"]) == (32, 32, 0)
    assert stat["memory_bytes"] == settled
    assert depth(index, chain(1, 32), 1) == 32


def test_dropped_workers_leave_no_entries() -> None:
    index = _core.PrefixIndex(BYTES)
    index.store(1, 0, column(chain(1, 500)))
    index.drop(1)
    for _turn in range(40):  # calls sweep a little each
        index.store(2, 0, column(chain(2, 3)))
        index.remove(2, 0, column(chain(2, 3)))
    assert index.stat()["entries"] == 0


def test_memory_stays_below_its_bound_and_what_is_used_stays() -> None:
    bytes_max = 2 << 20
    index = _core.PrefixIndex(bytes_max)
    hot = chain(7, 64)
    for number in range(4000):
        if number % 20 == 0:
            index.store(1, 0, column(hot))
        index.store(1 + number % 8, 0, column(chain(1000 + number, 64)))
    stat = index.stat()
    assert stat["evicted"] > 0
    assert stat["memory_bytes"] <= bytes_max
    assert 20_000 < stat["blocks"] < 256_000
    assert depth(index, hot, 1) == 64
    newest = chain(1000 + 3999, 64)
    assert depth(index, newest, 1 + 3999 % 8) == 64


def test_bad_arguments_are_refused() -> None:
    index = _core.PrefixIndex(BYTES)
    with pytest.raises(ValueError, match="slot 8"):
        index.store(1, 8, column([1]))
    with pytest.raises(ValueError, match="place"):
        index.store(1 << 16, 0, column([1]))
    with pytest.raises(ValueError, match="1 MiB"):
        _core.PrefixIndex(1000)
    with pytest.raises(TypeError):
        index.store(1, 0, [1, 2])  # type: ignore[arg-type]


def test_an_empty_chain_is_held_by_nobody() -> None:
    index = _core.PrefixIndex(BYTES)
    index.store(1, 0, column([]))
    depths, pool = index.find(column([]), PLACES)
    assert (depths.sum(), pool) == (0, 0)


def test_removing_from_either_end_is_the_same() -> None:
    """Runs named from their start are taken from their end; what others hold of them stays."""
    for order in (1, -1):
        index = _core.PrefixIndex(BYTES)
        blocks = chain(3, 200)
        for place in (1, 2):
            index.store(place, 0, column(blocks))
        assert index.remove(1, 0, column(blocks[150:][::order])) == 50
        places = np.array([1, 2], np.int64)
        assert index.find(column(blocks), places)[0][0].tolist() == [150, 200]
        assert index.remove(1, 0, column(blocks[:150][::order])) == 150
        assert index.remove(2, 0, column(blocks[::order])) == 200
        stat = index.stat()
        assert (stat["blocks"], stat["entries"], stat["torn"]) == (0, 0, 0)


class Twins(RuleBasedStateMachine):
    """Chains that branch from a few stems, over places and slots; parents are always told."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        choose = random.Random(seed)
        self.index = _core.PrefixIndex(BYTES)
        self.naive = NaiveIndex()
        self.chains = [chain(1, choose.randint(1, 24))]
        for tag in range(2, 9):
            stem = choose.choice(self.chains)[: choose.randint(0, 20)]
            self.chains.append(stem + chain(tag, choose.randint(1, 12), stem[-1] if stem else 0))

    @rule(
        place=st.integers(0, 2),
        slot=st.sampled_from([0, 0, 0, 1, 2, 3]),
        which=st.integers(0, 7),
        first=st.sampled_from([0, 0, 0, 2, 5, 11]),
        count=st.sampled_from([1, 3, 8, 30, 30]),
    )
    def store(self, place: int, slot: int, which: int, first: int, count: int) -> None:
        blocks = self.chains[which]
        first = min(first, len(blocks) - 1)
        part = blocks[first : first + count]
        self.index.store(place, slot, column(part), blocks[first - 1] if first else 0)
        self.naive.store(place, slot, part)

    @rule(
        place=st.integers(0, 2),
        slot=st.sampled_from([0, 0, 0, 1, 2, 3]),
        which=st.integers(0, 7),
        places=st.lists(st.integers(0, 20), min_size=1, max_size=4),
    )
    def remove(self, place: int, slot: int, which: int, places: list[int]) -> None:
        part = [self.chains[which][i] for i in places if i < len(self.chains[which])]
        assert self.index.remove(place, slot, column(part)) == self.naive.remove(place, slot, part)

    @rule(place=st.integers(0, 2))
    def drop(self, place: int) -> None:
        self.index.drop(place)
        self.naive.drop(place)

    @rule(slot=st.sampled_from([1, 3]))
    def drop_slot(self, slot: int) -> None:
        self.index.drop_slot(slot)
        self.naive.drop_slot(slot)

    @invariant()
    def same(self) -> None:
        assert len(self.index) == len(self.naive)
        for blocks in self.chains:
            depths, pool = self.index.find(column(blocks), PLACES)
            for row, slots in zip(depths, (DEVICE_SLOTS, HOST_SLOTS, ALL_SLOTS), strict=True):
                assert row.tolist() == [self.naive.depth(blocks, p, slots) for p in range(6)]
            assert pool == self.naive.depth(blocks, 0, ALL_SLOTS)
            holders = {p: self.naive.depth(blocks, p, ALL_SLOTS) for p in range(6)}
            assert self.index.holders(column(blocks)) == {p: d for p, d in holders.items() if d}
        assert self.index.held(1, 0) == len(self.naive.held(1, 0))


TestTwins = Twins.TestCase
TestTwins.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
