"""Reserve, commit, abort: what a put may do and what it leaves behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from moonpool.pool.catalog.base import NO_SEGMENT, CatalogConfig
from moonpool.pool.messages import LookupStatus, PutStatus
from tests.pool.catalog.harness import SMALL, Pool, status_of

FOUND, ABSENT = LookupStatus.FOUND, LookupStatus.ABSENT


@pytest.fixture
def pool() -> Pool:
    pool = Pool()
    pool.add_segment(100)
    return pool


def test_nothing_is_visible_before_commit(pool: Pool) -> None:
    admitted = pool.reserve([b"a"])
    assert pool.look([b"a"]) == [LookupStatus.IN_FLIGHT]
    pool.commit(pool.sealed(admitted))
    assert pool.look([b"a"]) == [FOUND]
    pool.check()


def test_a_committed_key_is_said_to_exist(pool: Pool) -> None:
    pool.put([b"a"])
    assert pool.put([b"a", b"b"]) == [PutStatus.EXISTS, PutStatus.COMMITTED]


def test_a_key_being_written_is_in_flight(pool: Pool) -> None:
    pool.reserve([b"a"])
    assert status_of(pool.reserve([b"a"], owner=2)) == [PutStatus.IN_FLIGHT]


def test_a_key_named_twice_is_granted_once(pool: Pool) -> None:
    assert pool.put([b"a", b"a"]) == [PutStatus.COMMITTED, PutStatus.IN_FLIGHT]
    assert pool.put([b"a", b"a"]) == [PutStatus.EXISTS, PutStatus.EXISTS]
    pool.check()


def test_an_abort_leaves_nothing(pool: Pool) -> None:
    admitted = pool.reserve([b"a", b"b"], chain=True)
    ended = pool.catalog.abort(admitted.rows, admitted.attempts, pool.now)
    assert sorted(ended.keys) == [b"a", b"b"]
    assert [e.sequences.tolist() for e in ended.expiries] == [admitted.attempts.tolist()]
    assert len(pool.catalog.table) == 0
    assert pool.catalog.segments[0].free_bytes == 100
    pool.check()


def test_an_abort_of_somebody_elses_row_is_ignored(pool: Pool) -> None:
    admitted = pool.reserve([b"a", b"b"])
    ended = pool.catalog.abort(admitted.rows[::-1].copy(), admitted.attempts, pool.now)
    assert ended.keys == []
    assert pool.put([b"a"]) == [PutStatus.IN_FLIGHT]


def test_commit_after_expiry_is_gone_and_room_returns_with_the_agents_report(pool: Pool) -> None:
    admitted = pool.reserve([b"a"], 60)
    call = pool.sealed(admitted)
    pool.now += SMALL.reservation_ms / 1000
    assert pool.catalog.expire(pool.now).keys == [b"a"]
    assert pool.commit(call).status.tolist() == [PutStatus.GONE]
    segment = pool.catalog.segments[0]
    assert segment.free_bytes == 40
    segment.settle(pool.now, pool.now + 1)
    assert segment.free_bytes == 100
    pool.check()


def test_late_promises_end_by_themselves(pool: Pool) -> None:
    pool.reserve([b"a"], 60)
    pool.catalog.end_owner(1, pool.now)
    segment = pool.catalog.segments[0]
    segment.settle(pool.now + SMALL.reservation_ms / 1000 + 1, -1.0)
    assert segment.free_bytes == 100


def test_a_client_that_leaves_loses_its_reservations_only(pool: Pool) -> None:
    pool.reserve([b"a"], owner=1)
    other = pool.reserve([b"b"], owner=2)
    assert pool.catalog.end_owner(1, pool.now).keys == [b"a"]
    assert pool.commit(pool.sealed(other)).status.tolist() == [PutStatus.COMMITTED]
    pool.check()


def test_commit_is_idempotent(pool: Pool) -> None:
    call = pool.sealed(pool.reserve([b"a", b"b"]))
    assert pool.commit(call).status.tolist() == [PutStatus.COMMITTED] * 2
    assert pool.commit(call).status.tolist() == [PutStatus.COMMITTED] * 2
    pool.check()


def test_commit_of_foreign_or_absurd_rows_is_gone(pool: Pool) -> None:
    call = pool.sealed(pool.reserve([b"a", b"b"]))
    call.rows.setflags(write=True)
    bad = type(call)(
        call.term,
        np.array([-5, 2**30], np.int32),
        call.attempts,
        call.crcs,
        call.counts,
        call.segments,
        call.slots,
        call.generations,
    )
    assert pool.commit(bad).status.tolist() == [PutStatus.GONE] * 2
    assert pool.look([b"a", b"b"]) == [LookupStatus.IN_FLIGHT] * 2


def test_a_stale_term_cannot_commit(pool: Pool) -> None:
    call = pool.sealed(pool.reserve([b"a"]))
    pool.catalog.raise_term(2, pool.now)
    assert pool.commit(call).status.tolist() == [PutStatus.STALE_TERM]
    assert pool.look([b"a"]) == [ABSENT]
    pool.check()


def test_what_was_committed_stays_committed_under_a_new_term(pool: Pool) -> None:
    call = pool.sealed(pool.reserve([b"a"]))
    pool.commit(call)
    pool.catalog.raise_term(2, pool.now)
    assert pool.commit(call).status.tolist() == [PutStatus.COMMITTED]


def test_a_replica_on_another_segment_than_promised_does_not_count(pool: Pool) -> None:
    pool.add_segment(100)
    admitted = pool.reserve([b"a"], prefer=0)
    call = pool.sealed(admitted)
    call.segments[0] = 1
    settled = pool.commit(call)
    assert settled.status.tolist() == [PutStatus.GONE]
    assert pool.look([b"a"]) == [ABSENT]
    assert [e.segment for e in settled.expiries] == [0]
    pool.check()


def test_a_slot_out_of_bounds_does_not_count(pool: Pool) -> None:
    call = pool.sealed(pool.reserve([b"a"]))
    call.slots[0] = 1024
    assert pool.commit(call).status.tolist() == [PutStatus.GONE]
    pool.check()


def test_one_slot_cannot_hold_two_objects_of_one_commit(pool: Pool) -> None:
    call = pool.sealed(pool.reserve([b"a", b"b"]))
    call.slots[1] = call.slots[0]
    assert pool.commit(call).status.tolist() == [PutStatus.COMMITTED, PutStatus.GONE]
    pool.check()


def test_a_slot_that_was_reused_tells_that_its_old_object_is_gone(pool: Pool) -> None:
    old = pool.sealed(pool.reserve([b"a"]))
    pool.commit(old)
    new = pool.sealed(pool.reserve([b"b"]))
    new.slots[0] = old.slots[0]
    pool.commit(new)
    assert pool.look([b"a", b"b"]) == [ABSENT, FOUND]
    pool.check()


def test_zero_length_objects_are_legal(pool: Pool) -> None:
    assert pool.put([b"a", b"b"], 0, chain=True) == [PutStatus.COMMITTED] * 2
    pool.check()


def test_too_big_for_every_segment(pool: Pool) -> None:
    assert pool.put([b"a", b"b"], [101, 2]) == [PutStatus.TOO_BIG, PutStatus.COMMITTED]
    assert pool.put([b"c"], 2**33) == [PutStatus.TOO_BIG]
    pool.check()


def test_no_node() -> None:
    pool = Pool()
    assert pool.put([b"a"]) == [PutStatus.NO_NODE]
    pool.add_segment(10)
    assert pool.put([b"a"], replicas=2) == [PutStatus.NO_NODE]
    assert pool.put([b"a"], replicas=2, min_replicas=1) == [PutStatus.COMMITTED]
    pool.check()


def test_the_row_table_is_a_bound() -> None:
    pool = Pool(CatalogConfig(rows_max=4, segments_max=2, reservations_max=100, events_max=16))
    pool.add_segment(100)
    keys = [bytes([65 + i]) for i in range(4)]
    assert pool.put(keys) == [PutStatus.COMMITTED] * 4
    assert pool.put([b"x"]) == [PutStatus.COMMITTED]
    assert pool.found([*keys, b"x"]) == [*keys[:-1], b"x"] or len(pool.found([*keys, b"x"])) == 4
    assert pool.put([bytes([97 + i]) for i in range(5)]) == [PutStatus.FULL] * 5
    assert pool.catalog.rows.objects == 4
    pool.check()


def test_reservations_are_a_bound() -> None:
    pool = Pool(CatalogConfig(rows_max=64, segments_max=2, reservations_max=2, events_max=16))
    pool.add_segment(100)
    admitted = pool.reserve([b"a", b"b", b"c"])
    assert status_of(admitted) == [PutStatus.GRANTED, PutStatus.GRANTED, PutStatus.FULL]
    pool.commit(pool.sealed(admitted))
    assert pool.put([b"c"]) == [PutStatus.COMMITTED]
    pool.check()


def test_malformed_keys_raise_and_change_nothing(pool: Pool) -> None:
    with pytest.raises(ValueError):
        pool.reserve([b""])
    assert len(pool.catalog.table) == 0


def test_replicas_go_to_distinct_nodes(pool: Pool) -> None:
    pool.add_segment(100, node="n1")
    pool.add_segment(100, node="n1")
    admitted = pool.reserve([b"a", b"b"], replicas=2)
    for segments in admitted.segments.tolist():
        assert {pool.catalog.segments[s].node for s in segments} == {"n0", "n1"}
    pool.commit(pool.sealed(admitted))
    pool.check()


def test_fewer_sealed_replicas_than_the_minimum_are_refused(pool: Pool) -> None:
    pool.add_segment(100)
    call = pool.sealed(pool.reserve([b"a"], replicas=2))
    less = type(call)(
        call.term,
        call.rows,
        call.attempts,
        call.crcs,
        np.array([1], np.uint8),
        call.segments[:1],
        call.slots[:1],
        call.generations[:1],
    )
    assert pool.commit(less).status.tolist() == [PutStatus.GONE]
    pool.check()


def test_one_replica_named_twice_counts_once(pool: Pool) -> None:
    pool.add_segment(100)
    call = pool.sealed(pool.reserve([b"a"], replicas=2))
    call.segments[1] = call.segments[0]
    assert pool.commit(call).status.tolist() == [PutStatus.GONE]
    pool.check()


def test_min_replicas_is_enough(pool: Pool) -> None:
    pool.add_segment(100)
    call = pool.sealed(pool.reserve([b"a"], replicas=2, min_replicas=1))
    less = type(call)(
        call.term,
        call.rows,
        call.attempts,
        call.crcs,
        np.array([1], np.uint8),
        call.segments[:1],
        call.slots[:1],
        call.generations[:1],
    )
    assert pool.commit(less).status.tolist() == [PutStatus.COMMITTED]
    assert [s.promised_bytes for s in pool.catalog.segments] == [0, 0]
    pool.check()


def test_attempts_of_two_reservations_commit_together(pool: Pool) -> None:
    pool.add_segment(100)
    one = pool.sealed(pool.reserve([b"a", b"b"]))
    two = pool.sealed(pool.reserve([b"c"], replicas=2, outside=[], parents=[-1]))
    both = type(one)(
        one.term,
        *(
            np.concatenate([getattr(one, name), getattr(two, name)])
            for name in (
                "rows",
                "attempts",
                "crcs",
                "counts",
                "segments",
                "slots",
                "generations",
            )
        ),
    )
    assert pool.commit(both).status.tolist() == [PutStatus.COMMITTED] * 3
    pool.check()


def test_reoffer_moves_the_promise(pool: Pool) -> None:
    pool.add_segment(100)
    admitted = pool.reserve([b"a"], 7, prefer=0)
    offers, expiries = pool.catalog.reoffer(
        admitted.rows, admitted.attempts, np.array([0], np.uint16), "h0", 0.0
    )
    assert offers.tolist() == [1]
    assert [(e.segment, e.sequences.tolist()) for e in expiries] == [
        (0, admitted.attempts.tolist())
    ]
    assert [s.promised_bytes for s in pool.catalog.segments] == [0, 7]
    admitted.segments[0, 0] = 1
    assert pool.commit(pool.sealed(admitted)).status.tolist() == [PutStatus.COMMITTED]
    pool.check()


def test_reoffer_of_what_is_not_open_or_not_promised_is_refused(pool: Pool) -> None:
    admitted = pool.reserve([b"a"], 7)
    rows, attempts = admitted.rows, admitted.attempts

    def reoffer(rows: Any, attempts: Any, failed: Any, host_id: str) -> Any:
        return pool.catalog.reoffer(rows, attempts, failed, host_id, 0.0)[0]

    assert reoffer(rows, attempts, np.array([5], np.uint16), "h0").tolist() == [NO_SEGMENT]
    assert reoffer(rows, attempts + 9, np.array([0], np.uint16), "h0").tolist() == [NO_SEGMENT]
    assert reoffer(rows + 1, attempts, np.array([0], np.uint16), "h0").tolist() == [NO_SEGMENT]
    # There is no other node; the promise is given back and the attempt is left without a place.
    assert reoffer(rows, attempts, np.array([0], np.uint16), "h0").tolist() == [NO_SEGMENT]
    assert pool.catalog.segments[0].promised_bytes == 0
    pool.check()


def test_an_inherited_key_is_kept_for_its_heir(pool: Pool) -> None:
    pool.catalog.bequeath(b"a", 2, pool.now)
    assert status_of(pool.reserve([b"a", b"b"], owner=1)) == [
        PutStatus.IN_FLIGHT,
        PutStatus.GRANTED,
    ]
    assert status_of(pool.reserve([b"a"], owner=2)) == [PutStatus.GRANTED]
    assert not pool.catalog.heirs
    pool.check()


def test_an_inheritance_lapses(pool: Pool) -> None:
    pool.catalog.bequeath(b"a", 2, pool.now)
    pool.now += SMALL.inheritance_ms / 1000
    assert pool.catalog.lapsed(pool.now) == [b"a"]
    assert status_of(pool.reserve([b"a"], owner=1)) == [PutStatus.GRANTED]


def test_replica_rows_are_a_bound_too() -> None:
    config = CatalogConfig(rows_max=8, segments_max=4, reservations_max=100, events_max=16)
    pool = Pool(config)
    for _ in range(4):
        pool.add_segment(100)
    # Sixteen replica rows: four objects of four copies.
    for i in range(6):
        assert pool.put([b"%d" % i], replicas=4) == [PutStatus.COMMITTED]
        pool.check()
    assert pool.found([b"%d" % i for i in range(6)]) == [b"2", b"3", b"4", b"5"]
    for name in (b"w", b"x", b"y", b"z"):
        pool.put([name], replicas=4, pin=2)
    assert pool.put([b"v"], replicas=4) == [PutStatus.FULL]
    pool.check()


def test_a_full_table_spares_the_parents_of_the_batch() -> None:
    pool = Pool(CatalogConfig(rows_max=2, segments_max=2, reservations_max=100, events_max=16))
    pool.add_segment(100)
    pool.put([b"a"])
    pool.put([b"b"])
    assert pool.put([b"c"], parents=[-2], outside=[b"a"]) == [PutStatus.COMMITTED]
    assert pool.found([b"a", b"b", b"c"]) == [b"a", b"c"]
    pool.check()


def test_a_segment_that_fails_its_writers_gets_a_rest() -> None:
    pool = Pool()
    pool.add_segment(100)
    pool.add_segment(100, host="far")
    for attempt in range(3):
        admitted = pool.reserve([b"k%d" % attempt], 1)
        assert admitted.segments.tolist() == [[0]]
        failed = np.array([0], np.uint16)
        offers, _ = pool.catalog.reoffer(
            admitted.rows, admitted.attempts, failed, "h0", float(attempt)
        )
        assert offers.tolist() == [1]
    breaker = pool.catalog.segments[0].breaker
    assert breaker.tripped
    assert pool.reserve([b"a"], 1).segments.tolist() == [[1]]
    breaker.settle(6.9)
    assert breaker.tripped
    breaker.settle(7.0)
    assert pool.reserve([b"b"], 1).segments.tolist() == [[0]]
    pool.check()


def test_failures_far_apart_are_no_illness_and_a_segment_alone_gets_no_rest() -> None:
    pool = Pool()
    pool.add_segment(100)
    breaker = pool.catalog.segments[0].breaker
    for moment in (0.0, 6.0, 12.0):
        breaker.failed(moment)
    assert not breaker.tripped
    breaker.failed(13.0)
    assert pool.catalog.segments[0].breaker.tripped
    assert pool.put([b"a"], 1) == [PutStatus.COMMITTED]
