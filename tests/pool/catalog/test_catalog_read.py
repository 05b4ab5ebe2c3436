"""Lookup, exists, list, leases, expiry, removal, replacing."""

from __future__ import annotations

import numpy as np
import pytest

from moonpool.pool.catalog.base import CatalogConfig
from moonpool.pool.columns import pack_keys, u32
from moonpool.pool.messages import LookupStatus as L
from moonpool.pool.messages import PutStatus as S
from tests.pool.catalog.harness import Pool


@pytest.fixture
def pool() -> Pool:
    pool = Pool()
    pool.add_segment(100)
    pool.add_segment(100)
    return pool


def exists(pool: Pool, keys: list[bytes]) -> list[int]:
    column = pack_keys(keys)
    return pool.catalog.exists(column.blob, u32(column.ends), pool.wall_ms).tolist()  # type: ignore[no-any-return]


def lose(pool: Pool, segment: int) -> None:
    pool.catalog.segments.set_alive(pool.catalog.segments[segment], False)


def test_lookup_gives_every_replica(pool: Pool) -> None:
    pool.put([b"a"], replicas=2)
    pool.put([b"b"])
    column = pack_keys([b"b", b"x", b"a"])
    placed = pool.catalog.lookup(column.blob, u32(column.ends), False, 0)
    assert placed.counts.tolist() == [1, 0, 2]
    assert placed.rows.tolist() == [pool.row(b"b"), -1, pool.row(b"a")]
    segments = pool.catalog.table.replica_segment[placed.replicas].tolist()
    assert sorted(segments[1:]) == [0, 1]


def test_prefix_lookup_answers_the_leading_run(pool: Pool) -> None:
    pool.put([b"a", b"b"], chain=True)
    pool.put([b"d"])
    assert pool.look([b"a", b"b", b"c", b"d"], prefix=True) == [
        L.FOUND,
        L.FOUND,
        L.ABSENT,
        L.ABSENT,
    ]


def test_prefix_lookup_stops_at_what_nobody_reaches(pool: Pool) -> None:
    pool.put([b"a"], prefer=0)
    pool.put([b"b"], prefer=1)
    pool.put([b"c"], prefer=0)
    lose(pool, 1)
    assert pool.look([b"a", b"b", b"c"], prefix=True) == [L.FOUND, L.UNREACHABLE, L.ABSENT]
    column = pack_keys([b"a", b"b", b"c"])
    placed = pool.catalog.lookup(column.blob, u32(column.ends), True, 0)
    assert placed.counts.tolist() == [1, 0, 0]
    assert placed.replicas.size == 1
    assert exists(pool, [b"a", b"b", b"c"]) == [1, 0, 1]


def test_a_lost_replica_is_skipped(pool: Pool) -> None:
    pool.put([b"a"], replicas=2)
    lose(pool, 0)
    column = pack_keys([b"a"])
    placed = pool.catalog.lookup(column.blob, u32(column.ends), False, 0)
    assert placed.counts.tolist() == [1]
    assert pool.catalog.table.replica_segment[placed.replicas].tolist() == [1]


def test_no_new_objects_on_a_lost_segment(pool: Pool) -> None:
    lose(pool, 0)
    admitted = pool.reserve([b"%d" % i for i in range(20)])
    assert set(admitted.segments.ravel().tolist()) == {1}


def test_a_key_nobody_reaches_may_be_put_again(pool: Pool) -> None:
    pool.put([b"a"], 5, prefer=0)
    lose(pool, 0)
    admitted = pool.reserve([b"a"], 7)
    settled = pool.commit(pool.sealed(admitted))
    assert settled.status.tolist() == [S.COMMITTED]
    assert [one.segment for one in settled.retirements] == [0]
    assert pool.look([b"a"]) == [L.FOUND]
    pool.check()


def test_ttl(pool: Pool) -> None:
    pool.put([b"a"], expiry_ms=pool.wall_ms + 10)
    pool.put([b"b"])
    assert exists(pool, [b"a", b"b"]) == [1, 1]
    pool.wall_ms += 10
    assert pool.look([b"a", b"b"]) == [L.EXPIRED, L.FOUND]
    assert exists(pool, [b"a", b"b"]) == [0, 1]
    assert [one.slots.size for one in pool.catalog.sweep(pool.now, pool.wall_ms)] == [1]
    assert pool.look([b"a"]) == [L.ABSENT]
    assert pool.catalog.sweep(pool.now, pool.wall_ms) == []
    pool.check()


def test_an_expired_key_may_be_put_again(pool: Pool) -> None:
    pool.put([b"a"], expiry_ms=pool.wall_ms + 10)
    pool.wall_ms += 10
    assert pool.put([b"a"]) == [S.COMMITTED]
    assert pool.look([b"a"]) == [L.FOUND]
    pool.check()


def test_replace_keeps_the_old_value_until_commit(pool: Pool) -> None:
    pool.put([b"a"], 5)
    old = int(pool.catalog.table.seq[pool.row(b"a")])
    admitted = pool.reserve([b"a"], 7, replace=True)
    assert pool.look([b"a"]) == [L.FOUND]
    assert int(pool.catalog.table.seq[pool.row(b"a")]) == old
    settled = pool.commit(pool.sealed(admitted))
    assert sum(one.slots.size for one in settled.retirements) == 1
    row = pool.row(b"a")
    assert int(pool.catalog.table.seq[row]) == int(admitted.attempts[0])
    assert int(pool.catalog.table.size[row]) == 7
    assert pool.catalog.events.read(1, 2, 9)[0][0].kind == "replace"
    pool.check()


def test_a_failed_replace_keeps_the_old_value(pool: Pool) -> None:
    pool.put([b"a"], 5)
    admitted = pool.reserve([b"a"], 7, replace=True)
    pool.catalog.abort(admitted.rows, admitted.attempts, pool.now)
    assert pool.look([b"a"]) == [L.FOUND]
    assert pool.put([b"a"]) == [S.EXISTS]
    pool.check()


def test_one_replacement_at_a_time(pool: Pool) -> None:
    pool.put([b"a"])
    pool.reserve([b"a"], replace=True)
    assert pool.put([b"a"], replace=True) == [S.IN_FLIGHT]
    assert pool.put([b"a"]) == [S.EXISTS]


def test_replace_together_with_new_keys(pool: Pool) -> None:
    pool.put([b"a", b"b"], chain=True)
    assert pool.put([b"a", b"n", b"b"], 9, replace=True, parents=[-1, 0, 0]) == [S.COMMITTED] * 3
    assert [int(pool.catalog.table.size[pool.row(key)]) for key in (b"a", b"n", b"b")] == [9, 9, 9]
    pool.check()


def test_replace_needs_room_beside_the_old_value() -> None:
    pool = Pool()
    pool.add_segment(10)
    pool.put([b"a"], 6)
    assert pool.put([b"a"], 6, replace=True) == [S.HELD]
    assert pool.look([b"a"]) == [L.FOUND]
    assert pool.put([b"a"], 4, replace=True) == [S.COMMITTED]
    pool.check()


def test_removed_while_being_replaced(pool: Pool) -> None:
    pool.put([b"a"])
    admitted = pool.reserve([b"a"], 3, replace=True)
    assert pool.remove([b"a"]) == [True]
    assert pool.look([b"a"]) == [L.IN_FLIGHT]
    assert pool.commit(pool.sealed(admitted)).status.tolist() == [S.COMMITTED]
    assert pool.look([b"a"]) == [L.FOUND]
    pool.check()


def test_removed_while_being_replaced_and_then_aborted(pool: Pool) -> None:
    pool.put([b"a"])
    admitted = pool.reserve([b"a"], 3, replace=True)
    pool.remove([b"a"])
    pool.catalog.abort(admitted.rows, admitted.attempts, pool.now)
    assert len(pool.catalog.table) == 0
    pool.check()


def test_remove_says_what_there_was(pool: Pool) -> None:
    pool.put([b"a"], replicas=2)
    pool.reserve([b"w"])
    column = pack_keys([b"a", b"x", b"w", b"a"])
    removed, removals, retirements = pool.catalog.remove(
        column.blob, u32(column.ends), pool.now, pool.wall_ms
    )
    assert removed.tolist() == [True, False, False, True]
    assert [(one.key, one.sequence, sorted(one.segments)) for one in removals] == [
        (b"a", 1, [0, 1])
    ]
    assert sorted(one.segment for one in retirements) == [0, 1]
    assert pool.look([b"a", b"w"]) == [L.ABSENT, L.IN_FLIGHT]
    pool.check()


def test_a_corrupt_replica_is_dropped_and_the_object_with_the_last(pool: Pool) -> None:
    pool.put([b"a"], replicas=2)
    _, replicas = pool.catalog.table.replicas_of(np.array([pool.row(b"a")], np.int32))
    assert pool.catalog.lose(replicas[:0], 0.0, 0) == []
    assert len(pool.catalog.lose(replicas[:1], 0.0, 0)) == 1
    assert pool.look([b"a"]) == [L.FOUND]
    pool.catalog.lose(replicas[1:], 0.0, 0)
    assert pool.look([b"a"]) == [L.ABSENT]
    pool.check()


def test_scan_is_by_prefix_and_bounded(pool: Pool) -> None:
    pool.put([b"a1", b"a2", b"b1"])
    pool.reserve([b"a3"])
    rows, cursor = pool.catalog.scan(0, 2, b"a")
    more, end = pool.catalog.scan(cursor, 99, b"a")
    found = [pool.catalog.table.key(row) for row in [*rows.tolist(), *more.tolist()]]
    assert (found, end) == ([b"a1", b"a2"], -1)


def test_a_lease_renews_releases_and_ends_with_its_holder(pool: Pool) -> None:
    pool.put([b"a", b"b"])
    leases, rows = pool.catalog.leases, [pool.row(b"a"), pool.row(b"b"), 999]
    sequences = np.array([1, 7, 1], np.uint64)
    number, granted, ttl_ms = leases.take(1, rows, sequences, 10**9, 0.0)
    assert (granted.tolist(), ttl_ms) == ([1, 0, 0], 60_000)
    assert leases.renew(2, number, rows, sequences, 1000, 0.0)[1] == 0
    assert leases.renew(1, number, rows[:1], sequences[:1], 1000, 5.0)[0].tolist() == [1]
    assert leases.next_deadline == 6.0
    leases.release(2, number)
    assert len(leases) == 1
    leases.end_owner(1)
    assert (len(leases), leases.objects) == (0, 0)
    leases.release(1, number)
    assert leases.take(1, [999], sequences[:1], 1000, 0.0)[0] == 0


def test_two_leases_on_one_object(pool: Pool) -> None:
    pool.put([b"a"], 100, prefer=0)
    pool.put([b"p"], 100, prefer=1, pin=2)
    row, sequences = pool.row(b"a"), np.array([1], np.uint64)
    first, _, _ = pool.catalog.leases.take(1, [row, row], np.array([1, 1], np.uint64), 1000, 0.0)
    pool.catalog.leases.take(2, [row], sequences, 1000, 0.0)
    pool.catalog.leases.release(1, first)
    assert pool.put([b"x"], 100) == [S.HELD]
    pool.catalog.leases.end_owner(2)
    assert pool.put([b"x"], 100) == [S.COMMITTED]


def test_removing_a_leased_object_holds_its_memory_for_the_rest(pool: Pool) -> None:
    pool.put([b"a"])
    pool.put([b"b"])
    row = pool.row(b"a")
    number, _, _ = pool.catalog.leases.take(1, [row], np.array([1], np.uint64), 5000, 0.0)
    pool.now = 2.0
    column = pack_keys([b"a", b"b"])
    _, _, retirements = pool.catalog.remove(column.blob, u32(column.ends), 2.0, 0)
    assert sorted(one.hold_ms for one in retirements) == [0, 3001]
    assert pool.catalog.leases.renew(1, number, [row], np.array([1], np.uint64), 9, 2.0)[0][0] == 0
    pool.put([b"c"])
    pool.catalog.leases.release(1, number)
    pool.check()


def test_leases_are_bounded() -> None:
    pool = Pool(CatalogConfig(rows_max=64, segments_max=2, reservations_max=9, leases_max=1))
    pool.add_segment(10)
    pool.put([b"a"])
    row, sequences = pool.row(b"a"), np.array([1], np.uint64)
    assert pool.catalog.leases.take(1, [row], sequences, 1000, 0.0)[0] == 1
    assert pool.catalog.leases.take(1, [row], sequences, 1000, 0.0)[0] == 0
