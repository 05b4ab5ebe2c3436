"""A reader of a sparse pool: rows and keys, in one call, in the background, by several threads."""

from pathlib import Path

import numpy as np
import pytest

from moonpool.core.errors import (
    BadInput,
    Closed,
)
from moonpool.sparse import SparseLayout, SparsePool, gather_union
from tests.sparse.stamped import SMALL, index_of, rows_of, small_pool, write


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("interleave", ["none", "page", "request"])
def test_rows_come_back_in_any_order(tmp_path: Path, devices: int, interleave: str) -> None:
    with small_pool(tmp_path, devices=devices, interleave=interleave) as pool:
        write(pool, "a", 1, 300)
        write(pool, "b", 2, 200)
        for key, owner, tokens in (("a", 1, 300), ("b", 2, 200)):
            with pool.reader(key) as reader:
                assert reader.length == tokens
                positions = np.random.default_rng(owner).permutation(tokens)[:150]
                for layer in range(SMALL.layers):
                    out = np.empty((150, 656), np.uint8)
                    reader.gather(layer, positions, out)
                    assert np.array_equal(out, rows_of(SMALL, owner, layer, positions))


def test_layers_of_one_call_and_all_rows(tmp_path: Path) -> None:
    with small_pool(tmp_path) as pool:
        write(pool, "a", 1, 100)
        with pool.reader("a") as reader:
            out = np.empty((5, 656), np.uint8)
            stats = reader.gather_layers([2, 0], [3, 2], [9, 9, 1, 5, 6], out)
            assert (stats.rows, stats.nbytes, stats.lines) == (5, 5 * 656, 55)
            assert np.array_equal(out[:3], rows_of(SMALL, 1, 2, [9, 9, 1]))
            assert np.array_equal(out[3:], rows_of(SMALL, 1, 0, [5, 6]))
            whole = np.empty((100, 656), np.uint8)
            reader.read_layer(1, whole)
            assert np.array_equal(whole, rows_of(SMALL, 1, 1, range(100)))
            assert reader.counters[1:3] == (105, 105 * 656)


def test_rows_that_several_requests_want_move_once(tmp_path: Path) -> None:
    with small_pool(tmp_path) as pool:
        write(pool, "a", 1, 200)
        with pool.reader("a") as reader:
            wanted = [[5, 199, 5], [199, 7], []]
            union = gather_union(reader, 1, wanted)
            assert (union.asked, union.moved) == (5, 3)
            assert reader.counters.rows == 3
            for positions, at in zip(wanted, union.at, strict=True):
                assert np.array_equal(union.rows[at], rows_of(SMALL, 1, 1, positions))


def test_index_keys_stream_layer_by_layer(tmp_path: Path) -> None:
    with small_pool(tmp_path, devices=2) as pool:
        write(pool, "a", 5, 200)
        with pool.reader("a") as reader:
            seen = dict(reader.load_index())
            assert list(seen) == [0, 1, 2]
            for layer, keys in seen.items():
                assert np.array_equal(keys, index_of(SMALL, 5, layer, 200))
            ahead = dict(reader.load_index(ahead=True))
            assert all(np.array_equal(ahead[layer], keys) for layer, keys in seen.items())
            assert list(reader.load_index([], ahead=True)) == []
            room = np.empty((1, 4, SMALL.index_page_bytes), np.uint8)
            assert [layer for layer, _ in reader.load_index([2], room)] == [2]
            assert np.array_equal(room[0], index_of(SMALL, 5, 2, 200))
            assert reader.counters.index_bytes == 7 * 4 * SMALL.index_page_bytes


def test_keys_are_brought_two_layers_ahead_and_no_further(tmp_path: Path) -> None:
    layout = SparseLayout(6, 656)
    with SparsePool.create(tmp_path / "six", layout, 256) as pool:
        with pool.writer("a", 200) as writer:
            for layer in range(6):
                writer.put(layer, 0, rows_of(layout, 5, layer, range(200)))
            writer.seal(200)
        with pool.reader("a") as reader:
            stream = reader.load_index(ahead=True)
            next(stream)
            stream.close()  # what was asked for meanwhile is waited for
            assert reader.counters.index_bytes == 3 * 4 * layout.index_page_bytes


def test_threads_share_gathers_and_copies(tmp_path: Path) -> None:
    with small_pool(tmp_path, tokens=2048, devices=2) as pool:
        write(pool, "a", 1, 2000)
        with pool.reader("a") as reader:
            reader.use_threads(3)
            wanted = np.random.default_rng(1).integers(0, 2000, 700)
            out = np.empty((700, 656), np.uint8)
            reader.gather(2, wanted, out)
            assert np.array_equal(out, rows_of(SMALL, 1, 2, wanted))
            whole = np.empty((2000, 656), np.uint8)
            reader.read_layer(1, whole)
            assert np.array_equal(whole, rows_of(SMALL, 1, 1, range(2000)))
            (keys,) = [keys for _, keys in reader.load_index([1])]
            assert np.array_equal(keys, index_of(SMALL, 1, 1, 2000))
            for threads in (0, 66):
                with pytest.raises(BadInput, match="threads are 1 to 65"):
                    reader.use_threads(threads)


def test_a_gather_in_the_background(tmp_path: Path) -> None:
    with small_pool(tmp_path) as pool:
        write(pool, "a", 1, 100)
        with pool.reader("a") as reader:
            outs = [np.empty((2, 656), np.uint8) for _ in range(3)]
            tickets = [reader.gather_async(n, [7, 3], out) for n, out in enumerate(outs)]
            for layer, (ticket, out) in enumerate(zip(tickets, outs, strict=True)):
                assert ticket.wait().rows == 2
                assert np.array_equal(out, rows_of(SMALL, 1, layer, [7, 3]))
            with pytest.raises(BadInput):
                reader.gather_async(0, [100], outs[0][:1])
        with pytest.raises(Closed):
            reader.gather_async(0, [7, 3], outs[0])
        assert reader._pool is None  # no thread was left behind
