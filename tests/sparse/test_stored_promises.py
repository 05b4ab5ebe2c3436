"""Prefixes in a pool are its objects: what it evicts, whom they belong to, what a lease keeps, and
what its events tell."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from moonpool.core.errors import BadInput, PrefixGone, QuotaExceeded
from moonpool.pool.pool import Pool
from moonpool.sparse import PrefixStore, SparseLayout, SparseReader
from tests.faults.pool_rig import MIB
from tests.faults.tenant_rig import tenant_pool, visitor
from tests.sparse.stamped import SMALL, index_of, rows_of
from tests.sparse.test_stored import TOKENS, UNIT, keys_of, store_prefix


@pytest.fixture
def pool() -> Iterator[Pool]:
    """With room for three prefixes."""
    with Pool.local("4MiB", headroom=8 * MIB) as pool:
        yield pool


def assert_rows(reader: SparseReader, owner: int) -> None:
    positions = np.array([0, 499, 128, 127, 300])
    for layer in range(SMALL.layers):
        out = np.empty((5, 656), np.uint8)
        reader.gather(layer, positions, out)
        assert np.array_equal(out, rows_of(SMALL, owner, layer, positions))


def units_of(pool: Pool, key: bytes) -> list[bool]:
    return pool.exists(keys_of(key))


@pytest.mark.parametrize("transport", ["shm", "tcp", "full"])
def test_a_full_pool_gives_prefixes_up_and_never_shows_a_part(pool: Pool, transport: str) -> None:
    store = PrefixStore(pool, SMALL, UNIT)
    for last in range(7):
        store_prefix(pool, f"p{last}", last)
        for owner in range(last + 1):
            there = store.exists(f"p{owner}")
            try:
                with store.reader(f"p{owner}", transport) as reader:
                    assert there
                    assert_rows(reader, owner)
            except PrefixGone:
                assert not there
        assert store.exists(f"p{last}")
    assert not store.exists("p0") and not any(units_of(pool, b"p0"))
    assert 3 <= sum(store.exists(f"p{owner}") for owner in range(7)) + 1


def test_a_lease_keeps_a_prefix_from_being_evicted(pool: Pool) -> None:
    store_prefix(pool, "kept", 0)
    with PrefixStore(pool, SMALL, UNIT).reader("kept", "tcp") as reader:
        for owner in range(1, 7):
            store_prefix(pool, f"p{owner}", owner)
            assert_rows(reader, 0)
        assert all(units_of(pool, b"kept"))
    for owner in range(7, 12):
        store_prefix(pool, f"p{owner}", owner)
    assert not any(units_of(pool, b"kept"))


def test_events_tell_of_every_object_of_a_prefix(pool: Pool) -> None:
    keys = [*keys_of(b"p"), b"p"]
    position = pool.events().position
    store_prefix(pool, "p", 1)
    told = pool.events(position)
    assert [(one.kind, one.key) for one in told.events] == [("put", key) for key in keys]
    assert [one.parent for one in told.events] == [b"", *keys[:-1]]
    PrefixStore(pool, SMALL, UNIT).remove("p")
    gone = pool.events(told.position).events
    assert {one.key for one in gone} == set(keys) and {one.kind for one in gone} == {"remove"}


def test_prefixes_belong_to_tenants() -> None:
    """Under one key each has its own, and a quota bounds what is written."""
    with (
        tempfile.TemporaryDirectory(prefix="moonpool-sparse-", dir="/dev/shm") as folder,
        tenant_pool(Path(folder), lines={"b": "quota_bytes = '2MiB'\nborrow = false"}) as rig,
        visitor(rig, "a") as ours,
        visitor(rig, "b") as theirs,
    ):
        store_prefix(ours, "p", 1)
        store = PrefixStore(theirs, SMALL, UNIT)
        assert not store.exists("p")
        with pytest.raises(PrefixGone):
            store.reader("p")
        store_prefix(theirs, "p", 2)
        for pool, owner in ((ours, 1), (theirs, 2)):
            for transport in ("auto", "tcp", "full"):
                with PrefixStore(pool, SMALL, UNIT).reader("p", transport) as reader:
                    assert_rows(reader, owner)
        with pytest.raises(QuotaExceeded):
            store_prefix(theirs, "larger", 3, tokens=2 * TOKENS)
        assert not store.exists("larger")
        store.remove("p")
        with PrefixStore(ours, SMALL, UNIT).reader("p", "tcp") as reader:
            assert_rows(reader, 1)


@pytest.mark.parametrize("transport", ["shm", "tcp", "full"])
def test_what_was_left_under_a_key_is_no_part_of_what_comes_next(transport: str) -> None:
    """Units of another length, of other units or of another layout; the manifest alone evicted."""
    wide = msgspec.structs.replace(SMALL, entry_bytes=1152)

    def check(pool: Pool, layout: SparseLayout, unit: int, tokens: int) -> None:
        with PrefixStore(pool, layout, unit).reader("p", transport) as reader:
            assert reader.length == tokens
            for layer in range(layout.layers):
                whole = np.empty((tokens, layout.entry_bytes), np.uint8)
                reader.read_layer(layer, whole)
                assert np.array_equal(whole, rows_of(layout, 1, layer, range(tokens)))
            for layer, keys in reader.load_index():
                assert np.array_equal(keys, index_of(layout, 1, layer, tokens))

    with Pool.local("64MiB", headroom=8 * MIB) as pool:
        for layout, unit, tokens, evicted in [
            (SMALL, 128, 500, False),
            (SMALL, 128, 700, False),  # it grew
            (SMALL, 128, 200, True),
            (SMALL, 64, 200, True),
            (wide, 64, 200, False),
            (SMALL, 128, 500, False),
        ]:
            if evicted:
                pool.remove("p")
            with PrefixStore(pool, layout, unit).writer("p", tokens) as writer:
                for layer in range(layout.layers):
                    index = index_of(layout, 1, layer, tokens)
                    writer.put(layer, 0, rows_of(layout, 1, layer, range(tokens)), index)
                writer.seal()
            check(pool, layout, unit, tokens)
        PrefixStore(pool, SMALL, 128).remove("p")
        assert list(pool.list()) == []


def test_a_prefix_whose_key_begins_another_ones_is_none_of_it(pool: Pool) -> None:
    store = PrefixStore(pool, SMALL, UNIT)
    for owner, key in enumerate(("a", "a/0", "a/1")):
        store_prefix(pool, key, owner, 200)
    for owner, key in enumerate(("a", "a/0", "a/1")):
        with store.reader(key, "tcp") as reader:
            out = np.empty((2, 656), np.uint8)
            reader.gather(1, [199, 0], out)
            assert np.array_equal(out, rows_of(SMALL, owner, 1, [199, 0]))
    store.remove("a")
    assert [store.exists(key) for key in ("a", "a/0", "a/1")] == [False, True, True]
    for call in (lambda: store.writer("a\0b", 64), lambda: store.remove("a\0b")):
        with pytest.raises(BadInput, match="no NUL byte"):
            call()
