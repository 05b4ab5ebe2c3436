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
    PoolFull,
    PrefixGone,
)
from moonpool.sparse.layout import U8
from moonpool.sparse.lock import PoolLock
from moonpool.sparse.tables import U64, Stores
from tests.sparse.stamped import SMALL, rows_of, small_pool, write


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
