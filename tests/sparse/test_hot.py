"""Hot buffers of every size and policy give the bytes that a plain gather gives, and count as their
model does."""

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.core.errors import BadInput, PrefixGone
from moonpool.sparse import (
    HotBuffer,
    SparseLayout,
    SparseReader,
    local_bytes,
    local_source,
)
from tests.sparse.stamped import SMALL, rows_of, small_pool, write

TINY = SparseLayout(layers=2, entry_bytes=24, index_bytes=0)
TOKENS = 40
STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.lists(st.integers(0, TOKENS - 1), max_size=6)), max_size=40
)


def tiny_reader() -> SparseReader:
    rows = np.stack([rows_of(TINY, 1, layer, range(TOKENS)) for layer in range(2)])
    return SparseReader(local_source(TINY, rows))


class Model:
    """What a buffer holds, as ordered dicts; victims of both levels leave at the front."""

    def __init__(self, rows: int, policy: str, second: int) -> None:
        self.rows, self.policy, self.second_max = rows, policy, second
        self.first: list[OrderedDict[int, None]] = [OrderedDict(), OrderedDict()]
        self.second: OrderedDict[tuple[int, int], None] = OrderedDict()
        self.hits = self.second_hits = self.fetched = self.evicted = self.second_evicted = 0

    def ask(self, layer: int, wanted: list[int]) -> None:
        here = self.first[layer]
        missed = [p for p in wanted if p not in here]
        for position in wanted:
            if position in here:
                self.hits += 1
                if self.policy == "lru":
                    here.move_to_end(position)
        now = set(wanted) & set(here)
        for position in missed:
            if position in here:
                self.hits += 1
                continue
            if self.second.pop((layer, position), 0) is None:
                self.second_hits += 1
            else:
                self.fetched += 1
            if len(here) == self.rows:
                victim = next(p for p in here if p not in now)
                del here[victim]
                self.evicted += 1
                if self.second_max:
                    self.second[layer, victim] = None
                    if len(self.second) > self.second_max:
                        self.second.popitem(last=False)
                        self.second_evicted += 1
            here[position] = None
            now.add(position)


@settings(max_examples=60, deadline=None)
@given(
    steps=STEPS,
    rows=st.integers(6, 12),
    policy=st.sampled_from(["lru", "fifo"]),
    second=st.sampled_from([0, 3, 50]),
    in_steps=st.booleans(),
)
def test_a_buffer_equals_its_model(
    steps: list[tuple[int, list[int]]], rows: int, policy: str, second: int, in_steps: bool
) -> None:
    reader = tiny_reader()
    if in_steps:
        reader = SparseReader(Unmapped(reader))
    hot = HotBuffer(TINY, rows, policy, second_rows=second)
    model = Model(rows, policy, second)
    for layer, wanted in steps:
        model.ask(layer, wanted)
        found = hot.resolve(reader, layer, wanted)
        assert np.array_equal(hot.rows[layer][found.slots], rows_of(TINY, 1, layer, wanted))
        counted = hot.counters
        assert (counted.hits, counted.second_hits) == (model.hits, model.second_hits)
        assert (counted.fetched, counted.evicted) == (model.fetched, model.evicted)
        assert counted.second_evicted == model.second_evicted
        assert counted.rows == counted.hits + counted.misses
        assert counted.misses == counted.second_hits + counted.fetched
    assert reader.counters.row_bytes == model.fetched * TINY.entry_bytes


class Unmapped:
    """A source as from another host: rows, but no table that native code could use."""

    kind = "unmapped"
    table = None

    def __init__(self, below: SparseReader) -> None:
        self._source = below.source
        self.layout = below.layout
        self.tokens = below.length
        self.gather = self._source.gather
        self.copy_rows = self._source.copy_rows
        self.copy_index = self._source.copy_index
        self.close = self._source.close


@settings(max_examples=30, deadline=None)
@given(steps=STEPS, rows=st.integers(6, 12), seed=st.integers(0, 9))
def test_a_random_buffer_holds_the_right_rows(
    steps: list[tuple[int, list[int]]], rows: int, seed: int
) -> None:
    reader, hot = tiny_reader(), HotBuffer(TINY, rows, "random", seed=seed)
    for layer, wanted in steps:
        found = hot.resolve(reader, layer, wanted)
        assert np.array_equal(hot.rows[layer][found.slots], rows_of(TINY, 1, layer, wanted))
        assert found.nbytes == (found.misses) * TINY.entry_bytes


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[SparseReader]:
    with small_pool(tmp_path, devices=2) as pool:
        write(pool, "a", 1, 500)
        with pool.reader("a") as opened:
            yield opened


@pytest.mark.parametrize("policy", ["lru", "fifo", "random"])
@pytest.mark.parametrize("rows", [64, 100, 500])
def test_several_layers_in_one_call(reader: SparseReader, policy: str, rows: int) -> None:
    hot = HotBuffer(SMALL, rows, policy, second_rows=100)
    random = np.random.default_rng(rows)
    for _ in range(30):
        positions = np.concatenate([random.permutation(500)[:64] for _ in range(3)])
        found = hot.resolve_layers(reader, [0, 1, 2], [64] * 3, positions)
        for layer in range(3):
            part = slice(layer * 64, layer * 64 + 64)
            got = hot.rows[layer][found.slots[part]]
            assert np.array_equal(got, rows_of(SMALL, 1, layer, positions[part]))
    assert reader.counters.rows == hot.counters.fetched


def test_a_hint_fills_the_buffer_in_one_go(reader: SparseReader) -> None:
    hot = HotBuffer(SMALL, 50)
    assert hot.prefetch(reader, []) == 0
    hint = [np.arange(80, dtype=np.uint32), np.zeros(0, np.uint32), np.array([3], np.uint32)]
    assert hot.prefetch(reader, hint) == 51 * 656
    assert hot.resolve(reader, 0, range(50)).misses == 0
    assert hot.resolve(reader, 2, [3]).misses == 0


def test_local_memory_is_what_the_formula_says(reader: SparseReader) -> None:
    hot = HotBuffer(SMALL, 64, second_rows=10)
    assert hot.nbytes == 3 * 64 * 656 + 10 * 656
    assert hot.rows.nbytes == 3 * 64 * 656
    assert hot.local_bytes(500) == local_bytes(SMALL, 64, 500) + 10 * 656
    assert 0 < hot.overhead_bytes < hot.nbytes / 10


def test_what_does_not_fit_is_refused(reader: SparseReader) -> None:
    hot = HotBuffer(SMALL, 4)
    with pytest.raises(BadInput, match="5 rows do not fit a hot buffer of 4"):
        hot.resolve(reader, 0, range(5))
    with pytest.raises(BadInput, match="outside a prefix of 500"):
        hot.resolve(reader, 0, [500])
    with pytest.raises(BadInput, match="must ascend"):
        hot.resolve_layers(reader, [1, 0], [1, 1], [1, 2])
    for layer in (3, -1):
        with pytest.raises(BadInput, match="layers are 0 to 2"):
            hot.resolve(reader, layer, [1])
    with pytest.raises(BadInput, match="counts cannot be negative"):
        hot.resolve_layers(reader, [0, 1], [-1, 2], [1])
    with pytest.raises(BadInput, match="rows of 656 bytes do not fit"):
        HotBuffer(SparseLayout(3, 1152), 4).resolve(reader, 0, [1])
    with pytest.raises(BadInput, match="unknown hot buffer policy"):
        HotBuffer(SMALL, 4, "lfu")
    with pytest.raises(BadInput):
        HotBuffer(SMALL, 0)
    assert hot.counters.rows == 0


def test_a_prefix_that_is_gone_leaves_the_buffer_as_it_was(tmp_path: Path) -> None:
    with small_pool(tmp_path, lease_s=0.0) as pool:
        write(pool, "a", 1, 100)
        with pool.reader("a") as reader:
            hot = HotBuffer(SMALL, 8)
            hot.resolve(reader, 0, [1, 2])
            pool.remove("a")
            with pytest.raises(PrefixGone):
                hot.resolve(reader, 0, [1, 3])
        write(pool, "a", 2, 100)
        hot.clear()
        with pool.reader("a") as reader:
            found = hot.resolve(reader, 0, [1, 3])
            assert np.array_equal(hot.rows[0][found.slots], rows_of(SMALL, 2, 0, [1, 3]))
