"""A sparse pool in one process: what is written is read, by anybody who maps it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from moonpool.core.errors import (
    BadInput,
    BadSize,
    Closed,
    DeadlineExceeded,
    LayoutMismatch,
    PoolFull,
    PrefixGone,
    SegmentDamaged,
)
from moonpool.sparse import SparseLayout, SparsePool, gather_union
from moonpool.sparse.layout import U8
from moonpool.sparse.lock import PoolLock
from moonpool.sparse.segment_format import HEADER_BYTES
from moonpool.sparse.tables import U64, Stores
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


def test_nothing_is_seen_before_its_commit(tmp_path: Path) -> None:
    with small_pool(tmp_path) as pool, pool.writer("a", 200) as writer:
        for layer in range(SMALL.layers):
            writer.put(layer, 0, rows_of(SMALL, 1, layer, range(150)))
        with pytest.raises(PrefixGone, match="not published"):
            pool.reader("a")
        assert writer.commit(150) == 128  # the last page in part stays its writer's
        with pool.reader("a") as reader:
            assert reader.length == 128
            with pytest.raises(BadInput):
                reader.gather(0, [128], bytearray(656))
        with pytest.raises(BadInput, match="sealed already"):
            writer.put(0, 100, rows_of(SMALL, 1, 0, [100]))
        for layer in range(SMALL.layers):
            writer.put(layer, 150, rows_of(SMALL, 1, layer, range(150, 170)))
        writer.seal(170)
        with pool.reader("a") as reader:
            out = np.empty((3, 656), np.uint8)
            reader.gather(2, [149, 150, 169], out)
            assert np.array_equal(out, rows_of(SMALL, 1, 2, [149, 150, 169]))
        with pytest.raises(Closed):
            writer.commit(170)


def test_a_writer_without_a_commit_leaves_nothing(tmp_path: Path) -> None:
    with small_pool(tmp_path) as pool:
        before = pool.stat()
        with pool.writer("a", 500):
            assert pool.stat().free_pages == before.free_pages - 8
        assert pool.stat() == before


class MarksSeen(Stores):
    """Notes at each change of the tables whether entry 0 has a living writer."""

    def __init__(self) -> None:
        self.alive: list[bool] = []
        self.look: Callable[[int], bool] | None = None

    def words(self, memory: U8, offsets: U64, values: U64) -> None:
        if self.look is not None:
            self.alive.append(self.look(0))
        super().words(memory, offsets, values)


def test_an_entry_is_given_back_without_its_writers_mark(tmp_path: Path) -> None:
    """The next writer that takes it sets its own mark at once; ours would be in its way."""
    seen = MarksSeen()
    with small_pool(tmp_path, stores=seen) as pool:
        writer = pool.writer("a", 64)
        seen.look = pool._writers.alive
        assert seen.look(0)
        writer.close()
        assert seen.alive and not any(seen.alive)


def test_a_writer_that_closes_keeps_what_it_committed(tmp_path: Path) -> None:
    with small_pool(tmp_path) as pool:
        write(pool, "a", 1, 200, seal=False)
        with pool.reader("a") as reader:
            assert reader.length == 192
        assert pool.stat().free_pages == 16 - 3


def test_another_opening_reads_the_same(tmp_path: Path) -> None:
    with small_pool(tmp_path, devices=2) as pool:
        write(pool, "a", 3, 100)
        with SparsePool.open(pool.paths, SMALL, writable=False) as other:
            with other.reader("a") as reader:
                out = np.empty((2, 656), np.uint8)
                reader.gather(1, [99, 0], out)
                assert np.array_equal(out, rows_of(SMALL, 3, 1, [99, 0]))
            with pytest.raises(BadInput, match="opened for reading"):
                other.writer("b", 10)


def test_keys_are_taken_once(tmp_path: Path) -> None:
    with small_pool(tmp_path) as pool:
        write(pool, "a", 1, 64)
        with pytest.raises(BadInput, match="sealed already"):
            pool.writer("a", 64)
        with pool.writer("b", 64), pytest.raises(BadInput, match="being written"):
            pool.writer("b", 64)
        assert pool.remove("a")
        assert not pool.remove("a")
        write(pool, "a", 2, 64)
        with pool.reader("a") as reader:
            out = np.empty((1, 656), np.uint8)
            reader.gather(0, [5], out)
            assert np.array_equal(out, rows_of(SMALL, 2, 0, [5]))


def test_a_full_pool_evicts_what_nobody_reads(tmp_path: Path) -> None:
    with small_pool(tmp_path, 1024) as pool:
        for number in range(4):
            write(pool, f"old{number}", number, 256)
        with pool.reader("old0"), pool.reader("old1"):
            write(pool, "new", 9, 512)  # old2 and old3 go: the others are leased
            assert [pool.exists(f"old{n}") for n in range(4)] == [True, True, False, False]
            with pytest.raises(PoolFull, match="16 pages are wanted, 8 could"):
                pool.writer("more", 1024)
        assert pool.exists("new")


def test_full_tables_say_so(tmp_path: Path) -> None:
    with small_pool(tmp_path, entries=1, leases=1) as pool:
        write(pool, "a", 1, 64)
        with pool.reader("a"):
            with pytest.raises(PoolFull, match="all 1 leases are taken"):
                pool.reader("a")
            with pytest.raises(PoolFull, match="all 1 prefixes are being written or read"):
                pool.writer("b", 64)
        pool.reader("a").close()
        write(pool, "b", 2, 64)
        assert not pool.exists("a")


def test_a_lock_that_another_holds_is_waited_for_to_a_deadline(tmp_path: Path) -> None:
    with small_pool(tmp_path) as pool:
        other = PoolLock(pool.paths[0])
        with other.held(), pytest.raises(DeadlineExceeded, match="holds the pool's lock"):
            with pool._lock.held(timeout_s=0.02):
                pass
        assert not pool.exists("a")  # free again
        other.close()


def test_what_was_opened_longest_ago_goes_first(tmp_path: Path) -> None:
    with small_pool(tmp_path, 1024) as pool:
        for number in range(4):
            write(pool, f"old{number}", number, 256)
        pool.reader("old0").close()
        write(pool, "new", 9, 100)
        assert [pool.exists(f"old{n}") for n in range(4)] == [True, False, True, True]


def test_a_removed_prefix_stays_for_its_readers(tmp_path: Path) -> None:
    with small_pool(tmp_path, 256) as pool:
        write(pool, "a", 1, 256)
        with pool.reader("a") as reader:
            pool.remove("a")
            with pytest.raises(PrefixGone):
                pool.reader("a")
            with pytest.raises(PoolFull):
                pool.writer("b", 256)
            out = np.empty((1, 656), np.uint8)
            reader.gather(2, [200], out)
            assert np.array_equal(out, rows_of(SMALL, 1, 2, [200]))
        assert pool.reap() == 4
        write(pool, "b", 2, 256)


def test_a_reader_whose_lease_ran_out_is_told(tmp_path: Path) -> None:
    """It gets PrefixGone, never rows of the next owner; opening again finds the new prefix."""
    with small_pool(tmp_path, 256, lease_s=0.0) as pool:
        write(pool, "a", 1, 256)
        reader = pool.reader("a")
        pool.remove("a")
        write(pool, "a", 2, 256)
        with pytest.raises(PrefixGone):
            reader.gather(0, [3], bytearray(656))
        with pytest.raises(PrefixGone):
            list(reader.load_index())
        reader.close()
        with pool.reader("a") as again:
            assert again.generation > reader.generation


def test_a_lease_that_ran_out_is_taken_again_while_the_prefix_is_there(tmp_path: Path) -> None:
    with small_pool(tmp_path, lease_s=0.0) as pool:
        write(pool, "a", 1, 100)
        with pool.reader("a") as reader:
            out = np.empty((1, 656), np.uint8)
            reader.gather(0, [3], out)
            assert np.array_equal(out, rows_of(SMALL, 1, 0, [3]))


def test_a_closed_pool_says_so_to_its_writers_and_readers(tmp_path: Path) -> None:
    """The lock's descriptor may be another file's by then: nothing is done to it."""
    pool = small_pool(tmp_path, lease_s=0.0, hint_tokens=1)
    write(pool, "a", 1, 100)
    reader, writer = pool.reader("a"), pool.writer("b", 64)
    pool.close()
    for call in (
        lambda: reader.gather(0, [3], bytearray(656)),
        lambda: writer.set_hint([[1]] * SMALL.layers),
        lambda: writer.commit(64),
        writer.close,
    ):
        with pytest.raises(BadInput, match="pool is closed"):
            call()
    reader.close()


def test_pages_lie_where_the_interleaving_says(tmp_path: Path) -> None:
    def devices_of(name: str, interleave: str) -> list[list[int]]:
        (tmp_path / name).mkdir()
        with small_pool(tmp_path / name, devices=2, interleave=interleave) as pool:
            for number in range(2):
                write(pool, f"p{number}", number, 4 * 64)
            owners, pages = pool._tables.owners, pool.geometry.pages
            return [(np.flatnonzero(owners == n) // pages).tolist() for n in range(2)]

    assert devices_of("n", "none") == [[0] * 4, [0] * 4]
    assert devices_of("r", "request") == [[0] * 4, [1] * 4]
    assert devices_of("p", "page") == [[0, 0, 1, 1]] * 2


def test_a_full_device_does_not_make_the_pool_full(tmp_path: Path) -> None:
    with small_pool(tmp_path, 512, devices=2, interleave="none") as pool:
        write(pool, "a", 1, 512)
        with pool.reader("a") as reader:
            out = np.empty((512, 656), np.uint8)
            reader.read_layer(0, out)
            assert np.array_equal(out, rows_of(SMALL, 1, 0, range(512)))


def test_hints_are_kept_with_the_prefix(tmp_path: Path) -> None:
    with small_pool(tmp_path, hint_tokens=4) as pool:
        with pool.writer("a", 100) as writer:
            for layer in range(SMALL.layers):
                writer.put(layer, 0, rows_of(SMALL, 1, layer, range(100)))
            writer.set_hint([[5, 6], [99, 150], [0, 1]])
            with pytest.raises(BadSize):
                writer.set_hint([[1, 2, 3, 4, 5]] * 3)
            for hint in ([[1, 2]], [[1.5, 2]] * 3, [1, 2, 3]):
                with pytest.raises(BadInput, match="a hint is integers"):
                    writer.set_hint(hint)
            writer.seal(100)
        with pool.reader("a") as reader:
            assert [column.tolist() for column in reader.hint()] == [[5, 6], [99], [0, 1]]


def test_wrong_rows_are_refused(tmp_path: Path) -> None:
    with small_pool(tmp_path) as pool, pool.writer("a", 64) as writer:
        with pytest.raises(BadSize, match="no number of rows of 656 bytes"):
            writer.put(0, 0, bytes(1152))
        with pytest.raises(BadInput, match="layers are 0 to 2"):
            writer.put(3, 0, bytes(656))
        with pytest.raises(BadInput, match="outside a prefix"):
            writer.put(0, 64, bytes(656))
        with pytest.raises(BadSize):
            writer.put(0, 0, bytes(656), bytes(5))
        with pytest.raises(BadInput):
            writer.seal(0)


def test_a_pool_of_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    SparsePool.create(path, SparseLayout(2, 656, model="one"), 64).close()
    SparsePool.open(path, SparseLayout(2, 656, model="one")).close()
    with pytest.raises(LayoutMismatch, match="another model"):
        SparsePool.open(path, SparseLayout(2, 656, model="two"))
    with pytest.raises(LayoutMismatch, match="entry_bytes 656, not 1152"):
        SparsePool.open(path, SparseLayout(2, 1152, model="one"))


def test_files_that_are_no_segment_are_refused(tmp_path: Path) -> None:
    with small_pool(tmp_path, devices=2) as pool:
        good, second = pool.paths
    with pytest.raises(SegmentDamaged, match="2 devices, 1 were named"):
        SparsePool.open(good)
    with pytest.raises(SegmentDamaged, match="not device 0"):
        SparsePool.open([second, good])
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"x" * (4 << 20))
    with pytest.raises(SegmentDamaged, match="no sparse segment"):
        SparsePool.open(foreign)
    with pytest.raises(SegmentDamaged, match="cannot be opened"):
        SparsePool.open(tmp_path / "absent")
    short = tmp_path / "short"
    short.write_bytes(good.read_bytes()[:-4096])
    with pytest.raises(SegmentDamaged, match="truncated"):
        SparsePool.open([short, second])
    tiny = tmp_path / "tiny"
    tiny.write_bytes(good.read_bytes()[:100])
    with pytest.raises(SegmentDamaged, match="no sparse segment"):
        SparsePool.open(tiny)
    for at in (8, 12, 300, HEADER_BYTES - 1):
        bent = bytearray(good.read_bytes())
        bent[at] ^= 1
        short.write_bytes(bent)
        with pytest.raises(SegmentDamaged):
            SparsePool.open([short, second])
    with pytest.raises(BadInput, match="exists already"):
        small_pool(tmp_path)
