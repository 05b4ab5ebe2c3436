"""Sparse prefixes as objects of a pool: views, rows packed over TCP, whole: the same bytes."""

import struct
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from moonpool.core.errors import (
    BadInput,
    BadSize,
    Closed,
    LayoutMismatch,
    PrefixGone,
    SegmentDamaged,
)
from moonpool.pool.gathering import RowsWanted
from moonpool.pool.pool import Pool
from moonpool.pool.shell import BlockingShell
from moonpool.sparse import HotBuffer, PrefixStore, SparseLayout, SparseReader
from moonpool.sparse.policy import Expected
from moonpool.sparse.stored_format import (
    MAGIC,
    VERSION,
    Manifest,
    decode_manifest,
    unit_keys,
)
from tests.faults.pool_rig import MIB, Rig, running
from tests.sparse.stamped import SMALL, index_of, rows_of

UNIT, TOKENS = 128, 500
TRANSPORTS = ["shm", "tcp", "full"]


def keys_of(key: bytes, tokens: int = TOKENS, layout: SparseLayout = SMALL) -> list[bytes]:
    """Of the units that `store_prefix` writes."""
    return unit_keys(key, Manifest(layout, tokens, UNIT))


def store_prefix(pool: Pool, key: str, owner: int, tokens: int = TOKENS, replicas: int = 1) -> None:
    with PrefixStore(pool, SMALL, UNIT).writer(key, tokens, replicas=replicas) as writer:
        half = tokens // 128 * 64
        for layer in range(SMALL.layers):
            rows = rows_of(SMALL, owner, layer, range(tokens))
            index = index_of(SMALL, owner, layer, tokens)
            writer.put(layer, 0, rows[:half], index[: half // 64])
            writer.put(layer, half, rows[half:], index[half // 64 :])
        writer.set_hint([[1, 2, 600]] * SMALL.layers)
        writer.seal()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(nodes=2, memory=64 * MIB) as rig:
        yield rig


@pytest.fixture(scope="module")
def filled(rig: Rig) -> Rig:
    store_prefix(rig.connect(), "p", 4)
    return rig


@pytest.fixture(params=TRANSPORTS)
def reader(request: pytest.FixtureRequest, filled: Rig) -> Iterator[SparseReader]:
    pool = filled.connect(shared_memory=request.param == "shm")
    with PrefixStore(pool, SMALL, UNIT).reader("p", request.param) as reader:
        assert reader.kind == request.param
        yield reader


def test_rows_of_several_layers_in_any_order(reader: SparseReader) -> None:
    assert reader.length == TOKENS
    random = np.random.default_rng(3)
    positions = np.concatenate([random.permutation(TOKENS)[:n] for n in (100, 0, 37)])
    out = np.empty((137, 656), np.uint8)
    reader.gather_layers([0, 1, 2], [100, 0, 37], positions, out)
    assert np.array_equal(out[:100], rows_of(SMALL, 4, 0, positions[:100]))
    assert np.array_equal(out[100:], rows_of(SMALL, 4, 2, positions[100:]))
    assert reader.counters[:3] == (1, 137, 137 * 656)


def test_rows_of_one_object_and_of_none(reader: SparseReader) -> None:
    out = np.empty((2, 656), np.uint8)
    reader.gather(1, [499, 390], out)
    assert np.array_equal(out, rows_of(SMALL, 4, 1, [499, 390]))
    reader.gather(1, [], out[:0])
    with pytest.raises(BadInput, match="outside a prefix of 500"):
        reader.gather(1, [500], out[:1])
    with pytest.raises(BadSize):
        reader.gather(1, [1], out)


def test_all_rows_and_all_keys(reader: SparseReader) -> None:
    whole = np.empty((TOKENS, 656), np.uint8)
    reader.read_layer(2, whole)
    assert np.array_equal(whole, rows_of(SMALL, 4, 2, range(TOKENS)))
    for layer, keys in reader.load_index():
        assert np.array_equal(keys, index_of(SMALL, 4, layer, TOKENS))


def test_the_hint_travels_with_the_prefix(reader: SparseReader) -> None:
    assert [column.tolist() for column in reader.hint()] == [[1, 2]] * 3


@pytest.mark.parametrize("policy", ["lru", "fifo", "random"])
@pytest.mark.parametrize("rows", [40, 64, 500])
def test_hot_buffers_hold_the_same_rows(reader: SparseReader, policy: str, rows: int) -> None:
    hot = HotBuffer(SMALL, rows, policy, second_rows=50)
    random = np.random.default_rng(rows)
    for _ in range(10):
        positions = np.concatenate([random.permutation(TOKENS)[:40] for _ in range(3)])
        found = hot.resolve_layers(reader, [0, 1, 2], [40] * 3, positions)
        for layer in range(3):
            part = slice(layer * 40, layer * 40 + 40)
            got = hot.rows[layer][found.slots[part]]
            assert np.array_equal(got, rows_of(SMALL, 4, layer, positions[part]))
    assert reader.counters.rows == hot.counters.fetched
    assert reader.counters.row_bytes == hot.counters.fetched * 656


def test_tcp_moves_the_rows_and_little_else(filled: Rig) -> None:
    pool = filled.connect(shared_memory=False)
    with PrefixStore(pool, SMALL, UNIT).reader("p", "tcp") as reader:
        with pytest.raises(BadInput, match="moved by one thread"):
            reader.use_threads(2)
        out = np.empty((400, 656), np.uint8)
        endpoint = cast(BlockingShell, pool._shell).opener._endpoint
        assert endpoint is not None
        before = endpoint.stats()["bytes_in"]
        reader.gather(0, np.arange(400)[::-1], out)
        moved = endpoint.stats()["bytes_in"] - before
        assert np.array_equal(out, rows_of(SMALL, 4, 0, np.arange(400)[::-1]))
        assert 400 * 656 <= moved <= 400 * 656 + 2 * 256  # a header and a trailer a node


def test_nothing_is_there_before_the_seal(rig: Rig) -> None:
    pool = rig.connect()
    store = PrefixStore(pool, SMALL, UNIT)
    writer = store.writer("w", 200)
    writer.put(0, 0, rows_of(SMALL, 1, 0, range(200)))
    with pytest.raises(PrefixGone):
        store.reader("w")
    writer.close()
    with pytest.raises(Closed):
        writer.put(0, 0, b"")
    assert not store.exists("w")
    assert not any(pool.exists(keys_of(b"w", 200)))
    store_prefix(pool, "w", 9, 200)
    assert store.exists("w")
    store.remove("w")
    assert not store.exists("w")
    assert not any(pool.exists(keys_of(b"w", 200)))


def test_views_outlive_a_removal_and_leases_end_typed(rig: Rig) -> None:
    pool, remote = rig.connect(), rig.connect(shared_memory=False)
    store_prefix(pool, "gone", 2)
    store = PrefixStore(pool, SMALL, UNIT)
    out = np.empty((3, 656), np.uint8)
    with (
        store.reader("gone", "shm") as near,
        PrefixStore(remote, SMALL, UNIT).reader("gone", "tcp") as far,
    ):
        far.gather(0, [1, 2, 3], out)
        store.remove("gone")
        near.gather(1, [400, 0, 130], out)
        assert np.array_equal(out, rows_of(SMALL, 2, 1, [400, 0, 130]))
        with pytest.raises(PrefixGone):
            far.gather(0, [1, 2, 3], out)
        hot = HotBuffer(SMALL, 10)
        with pytest.raises(PrefixGone):
            hot.resolve(far, 0, [1, 2])
        assert hot.resolve(near, 0, [1, 2]).misses == 2  # nothing of the failed call stayed
    with pytest.raises(PrefixGone):
        store.reader("gone")


def test_a_unit_that_is_gone_takes_the_prefix_along(rig: Rig) -> None:
    pool = rig.connect()
    store_prefix(pool, "hole", 3)
    pool.remove(keys_of(b"hole")[1])
    for transport in TRANSPORTS:
        with pytest.raises(PrefixGone):
            PrefixStore(pool, SMALL, UNIT).reader("hole", transport)


def test_a_lost_node_is_survived_with_a_replica(rig: Rig) -> None:
    with running(nodes=2, memory=64 * MIB) as own:
        store_prefix(own.connect(), "two", 6, replicas=2)
        pool = own.connect(shared_memory=False)
        with PrefixStore(pool, SMALL, UNIT).reader("two", "tcp") as reader:
            own.cluster.kill(own.cluster.nodes[0])
            out = np.empty((4, 656), np.uint8)
            reader.gather(2, [0, 499, 130, 260], out)
            assert np.array_equal(out, rows_of(SMALL, 6, 2, [0, 499, 130, 260]))


def test_other_objects_and_other_models_are_refused(filled: Rig) -> None:
    pool = filled.connect()
    pool.put("text", b"no prefix of rows")
    with pytest.raises(SegmentDamaged, match="no sparse prefix"):
        PrefixStore(pool, SMALL, UNIT).reader("text")
    with pytest.raises(LayoutMismatch, match="entry_bytes 656, not 1152"):
        other = msgspec.structs.replace(SMALL, entry_bytes=1152)
        PrefixStore(pool, other, UNIT).reader("p")
    with pytest.raises(LayoutMismatch, match="another model"):
        PrefixStore(pool, msgspec.structs.replace(SMALL, model="x"), UNIT).reader("p")
    with pytest.raises(BadInput, match="Did you mean 'tcp'"):
        PrefixStore(pool, SMALL, UNIT).reader("p", "tpc")
    with pytest.raises(BadInput, match="no number of pages"):
        PrefixStore(pool, SMALL, 100)
    with pytest.raises(BadInput):
        PrefixStore(pool, SMALL, UNIT).writer("q", 0)


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": 0},
        {"tokens": 1 << 40, "unit_tokens": 1 << 30},
        {"tokens": 1 << 31, "unit_tokens": 64},
        {"unit_tokens": 0},
        {"unit_tokens": 100},
        {"hint_tokens": -1},
        {"hint_tokens": 1 << 40},
    ],
)
def test_a_manifest_that_no_writer_made_is_refused(change: dict[str, int]) -> None:
    """Before anybody makes a list of as many objects as it says."""
    body = msgspec.msgpack.encode(msgspec.to_builtins(Manifest(SMALL, TOKENS, UNIT)) | change)
    with pytest.raises(SegmentDamaged):
        decode_manifest(struct.pack("<4sII", MAGIC, VERSION, len(body)) + body, "p")


@pytest.mark.parametrize("shared_memory", [True, False])
def test_rows_outside_their_object_are_refused(filled: Rig, shared_memory: bool) -> None:
    """What a session is told may be wrong: neither end reads beyond an object."""
    pool = filled.connect(shared_memory=shared_memory)
    u32, u64 = np.uint32, np.uint64
    zeros, ones = np.zeros(1, u32), np.ones(1, u32)
    wanted = RowsWanted(656, 4, np.zeros(1, u64), np.zeros(1, u64), zeros, ones, zeros)
    pool.put("small", bytes(1000))
    out = np.empty(656, np.uint8)
    with pool.read_session(["small"]) as session:
        assert session.read_rows(wanted, out)
        hostile: list[dict[str, Any]] = [
            {"positions": np.array([1], u32)},
            {"positions": np.array([4], u32)},
            {"offsets": np.array([900], u64)},
            {"offsets": np.array([2**64 - 8], u64)},
            {"layers": ones, "strides": np.array([2**63], u64)},
        ]
        for change in hostile:
            with pytest.raises(BadSize):
                session.read_rows(wanted._replace(**change), out)
        with pytest.raises(BadSize):
            session.read_rows(wanted, out[:100])


def test_an_embedded_pool_keeps_prefixes_too() -> None:
    with Pool.local("64MiB", headroom=8 * MIB) as pool:
        store_prefix(pool, "p", 5)
        for transport in ("auto", "shm", "tcp", "full"):
            with PrefixStore(pool, SMALL, UNIT).reader("p", transport) as reader:
                out = np.empty((3, 656), np.uint8)
                reader.gather(2, [300, 5, 499], out)
                assert np.array_equal(out, rows_of(SMALL, 5, 2, [300, 5, 499]))


def test_auto_fetches_whole_what_is_read_again_and_again(filled: Rig) -> None:
    store = PrefixStore(filled.connect(), SMALL, UNIT)
    for output_tokens, kind in ((1, "shm"), (10_000, "full")):
        expected = Expected(top_k=64, output_tokens=output_tokens)
        with store.reader("p", expected=expected) as reader:
            assert reader.kind == kind


def test_auto_copies_what_its_views_may_not_hold(rig: Rig) -> None:
    with Pool.local("64MiB", headroom=8 * MIB) as pool:
        store_prefix(pool, "p", 5)
        pool._pins._max = 1000
        with PrefixStore(pool, SMALL, UNIT).reader("p", "auto") as reader:
            assert reader.kind == "tcp"
            out = np.empty((1, 656), np.uint8)
            reader.gather(0, [7], out)
            assert np.array_equal(out, rows_of(SMALL, 5, 0, [7]))
