"""Inventories: taking a segment's objects in, and comparing later reports with the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from moonpool.core.errors import BadInput
from moonpool.pool.catalog.base import GHOST, ORPHAN, CatalogConfig, Retirement
from moonpool.pool.catalog.inventory import Report
from moonpool.pool.catalog.segments import Segment
from moonpool.pool.columns import pack_keys, u32
from moonpool.pool.messages import LookupStatus as L
from moonpool.pool.messages import PutStatus as S
from tests.pool.catalog.harness import Pool

Entry = tuple[bytes, bytes, int, int]  # key, parent, version sequence, last used


def report(
    entries: Sequence[Entry],
    *,
    term: int = 1,
    slots: Sequence[int] | None = None,
    size: int = 1,
    generation: int = 1,
    pin: int = 0,
    expiry_ms: int = 0,
) -> Report:
    n = len(entries)
    keys, parents = pack_keys([e[0] for e in entries]), pack_keys([e[1] for e in entries])
    return Report(
        slots=np.array(range(n) if slots is None else slots, np.uint32),
        generations=np.full(n, generation, np.uint64),
        terms=np.full(n, term, np.uint64),
        sequences=np.array([e[2] for e in entries], np.uint64),
        sizes=np.full(n, size, np.uint64),
        crcs=np.arange(n, dtype=np.uint32),
        tenants=np.zeros(n, np.uint32),
        expiries_ms=np.full(n, expiry_ms, np.int64),
        last_used=np.array([e[3] for e in entries], np.uint32),
        replicas=np.ones(n, np.uint8),
        pins=np.full(n, pin, np.uint8),
        blob=keys.blob,
        ends=u32(keys.ends),
        parent_blob=parents.blob,
        parent_ends=u32(parents.ends),
    )


@pytest.fixture
def pool() -> Pool:
    return rebuilt(1)


def rebuilt(segments: int) -> Pool:
    """A catalog whose segments were never heard."""
    pool = Pool()
    pool.catalog.rows.rebuilding = True
    for _ in range(segments):
        pool.add_segment(100).known = False
    pool.catalog.rows.term = 2
    return pool


def take(
    pool: Pool, segment: Segment, *chunks: Report, dead: Sequence[int] = ()
) -> list[Retirement]:
    progress = pool.catalog.inventory.begin(segment)
    retirements = []
    for chunk in chunks:
        retirements += pool.catalog.inventory.take(
            segment, progress, chunk, lambda r: np.isin(r.sequences, dead), pool.now, pool.wall_ms
        )
    pool.catalog.inventory.finish(segment, progress, pool.wall_ms, pool.now)
    return retirements


def slots_of(retirements: Sequence[Retirement]) -> list[tuple[int, int]]:
    return sorted((one.segment, slot) for one in retirements for slot in one.slots.tolist())


def test_a_first_inventory_brings_objects_back(pool: Pool) -> None:
    segment = pool.catalog.segments[0]
    assert take(pool, segment, report([(b"a", b"", 5, 1), (b"b", b"a", 6, 1)], size=3)) == []
    assert pool.look([b"a", b"b"]) == [L.FOUND] * 2
    assert (segment.committed_bytes, segment.objects, segment.known) == (6, 2, True)
    assert pool.catalog.table.parent[pool.row(b"b")] == pool.row(b"a")
    pool.check()


def test_children_may_be_reported_before_their_parents(pool: Pool) -> None:
    segment = pool.catalog.segments[0]
    first = report([(b"c", b"b", 7, 1), (b"b", b"a", 6, 2)])
    take(pool, segment, first, report([(b"a", b"", 5, 3)], slots=[9]))
    assert pool.look([b"a", b"b", b"c"], prefix=True) == [L.FOUND] * 3
    pool.catalog.rows.orphan_all()
    assert not pool.catalog.table.flags[pool.row(b"c")] & ORPHAN
    pool.check()


def test_without_their_parents_they_are_orphans_once_the_rebuild_is_over(pool: Pool) -> None:
    take(pool, pool.catalog.segments[0], report([(b"c", b"b", 7, 1), (b"d", b"c", 8, 1)]))
    assert pool.catalog.table.state[pool.row(b"b")] == GHOST
    assert not pool.catalog.table.flags[pool.row(b"c")] & ORPHAN
    pool.catalog.rows.orphan_all()
    assert all(pool.catalog.table.flags[pool.row(key)] & ORPHAN for key in (b"c", b"d"))
    pool.put([b"b"])
    assert not pool.catalog.table.flags[pool.row(b"d")] & ORPHAN
    pool.check()


def test_recency_follows_last_use_and_roots_stay_most_recent(pool: Pool) -> None:
    entries = [(b"a", b"", 1, 50), (b"b", b"a", 2, 50), (b"x", b"", 3, 10), (b"y", b"", 4, 90)]
    take(pool, pool.catalog.segments[0], report(entries))
    table = pool.catalog.table
    order = [table.key(int(row)) for row in table.replica_object[table.list_iter(0)]]
    assert order == [b"x", b"b", b"a", b"y"]


def test_the_highest_version_of_a_key_wins_within_a_chunk(pool: Pool) -> None:
    segment = pool.catalog.segments[0]
    retirements = take(
        pool, segment, report([(b"a", b"", 5, 1), (b"a", b"", 9, 1), (b"a", b"", 7, 1)])
    )
    assert slots_of(retirements) == [(0, 0), (0, 2)]
    assert int(pool.catalog.table.seq[pool.row(b"a")]) == 9
    pool.check()


@pytest.mark.parametrize("order", [(5, 9), (9, 5)])
def test_the_highest_version_of_a_key_wins_over_segments(order: tuple[int, int]) -> None:
    pool = rebuilt(2)
    retirements = []
    for number, sequence in enumerate(order):
        entry = report([(b"a", b"", sequence, 1)], size=sequence)
        retirements += take(pool, pool.catalog.segments[number], entry)
    assert slots_of(retirements) == [(order.index(5), 0)]
    assert int(pool.catalog.table.size[pool.row(b"a")]) == 9
    assert pool.catalog.rows.objects == 1
    pool.check()


def test_equal_versions_are_replicas() -> None:
    pool = rebuilt(2)
    for number in range(2):
        assert take(pool, pool.catalog.segments[number], report([(b"a", b"", 5, 1)])) == []
    assert pool.catalog.table.replicas_of(np.array([pool.row(b"a")], np.int32))[0].tolist() == [2]
    pool.check()


def test_what_a_tombstone_covers_is_retired(pool: Pool) -> None:
    chunk = report([(b"a", b"", 5, 1), (b"b", b"", 6, 1)])
    assert slots_of(take(pool, pool.catalog.segments[0], chunk, dead=[5])) == [(0, 0)]
    assert pool.look([b"a", b"b"]) == [L.ABSENT, L.FOUND]
    pool.check()


def test_a_ring_in_a_report_is_cut(pool: Pool) -> None:
    take(pool, pool.catalog.segments[0], report([(b"a", b"b", 5, 1), (b"b", b"a", 6, 1)]))
    assert pool.look([b"a", b"b"]) == [L.FOUND] * 2
    pool.touch([b"a", b"b"])
    pool.check()


def test_pins_and_ttls_come_back(pool: Pool) -> None:
    expiry_ms = pool.wall_ms + 5
    take(
        pool,
        pool.catalog.segments[0],
        report([(b"a", b"", 5, 1)], size=100, pin=2, expiry_ms=expiry_ms),
    )
    assert pool.put([b"x"]) == [S.HELD]
    pool.wall_ms += 5
    assert pool.look([b"a"]) == [L.EXPIRED]


def test_a_full_row_table_retires_the_rest() -> None:
    pool = Pool(CatalogConfig(rows_max=2, segments_max=1, reservations_max=9, events_max=9))
    pool.add_segment(100).known = False
    entries = [(b"a", b"", 1, 1), (b"b", b"", 2, 1), (b"c", b"", 3, 1)]
    retirements = take(pool, pool.catalog.segments[0], report(entries))
    assert slots_of(retirements) == [(0, 0), (0, 1), (0, 2)]
    pool.check()


def test_a_returning_segment_is_compared_with_the_catalog(pool: Pool) -> None:
    segment = pool.catalog.segments[0]
    entries = [(b"a", b"", 5, 1), (b"b", b"", 6, 1), (b"c", b"", 7, 1)]
    take(pool, segment, report(entries))
    pool.remove([b"b"])
    retirements = take(pool, segment, report(entries[:2]))
    assert slots_of(retirements) == [(0, 1)]
    assert pool.look([b"a", b"b", b"c"]) == [L.FOUND, L.ABSENT, L.ABSENT]
    assert pool.catalog.events.read(1, 1, 99)[0][-1].key == b"c"
    pool.check()


def test_what_is_committed_while_an_inventory_is_on_its_way_is_not_lost(pool: Pool) -> None:
    segment = pool.catalog.segments[0]
    take(pool, segment, report([(b"a", b"", 5, 1)], slots=[1000]))
    segment.open = True
    progress = pool.catalog.inventory.begin(segment)
    pool.catalog.admission.next_sequence = 50
    pool.put([b"n"])
    pool.catalog.inventory.finish(segment, progress, 0, 0.0)
    assert pool.look([b"a", b"n"]) == [L.ABSENT, L.FOUND]
    pool.check()


def test_a_value_replaced_while_an_inventory_is_on_its_way_is_not_lost(pool: Pool) -> None:
    segment = pool.catalog.segments[0]
    take(pool, segment)
    segment.open = True
    pool.put([b"a"])
    progress = pool.catalog.inventory.begin(segment)
    pool.put([b"a"], replace=True)  # its replica takes over the row of the old one
    pool.catalog.inventory.finish(segment, progress, 0, 0.0)
    assert pool.look([b"a"]) == [L.FOUND]
    pool.check()


def test_what_comes_late_without_its_parent_is_an_orphan(pool: Pool) -> None:
    segment = pool.catalog.segments[0]
    pool.catalog.rows.orphan_all()
    take(pool, segment, report([(b"b", b"a", 5, 1), (b"c", b"b", 6, 1), (b"d", b"", 7, 1)]))
    flags = pool.catalog.table.flags
    assert [bool(flags[pool.row(key)] & ORPHAN) for key in (b"b", b"c", b"d")] == [
        True,
        True,
        False,
    ]
    pool.check()


def test_versions_being_written_are_left_alone(pool: Pool) -> None:
    segment = pool.catalog.segments[0]
    take(pool, segment)
    admitted = pool.reserve([b"a"])
    call = pool.sealed(admitted)
    chunk = replace(
        report([(b"a", b"", int(call.attempts[0]), 1)], term=2, slots=call.slots.tolist()),
        generations=call.generations,
    )
    assert take(pool, segment, chunk) == []
    assert pool.commit(call).status.tolist() == [S.COMMITTED]
    pool.check()


def test_the_commit_of_a_key_replaces_what_was_reported_of_it_meanwhile() -> None:
    pool = rebuilt(2)
    pool.catalog.segments[1].known = True
    admitted = pool.reserve([b"a"], prefer=1)
    assert take(pool, pool.catalog.segments[0], report([(b"a", b"", 1, 1)])) == []
    settled = pool.commit(pool.sealed(admitted))
    assert settled.status.tolist() == [S.COMMITTED]
    assert slots_of(settled.retirements) == [(0, 0)]
    pool.check()


@pytest.mark.parametrize(
    "broken",
    [
        lambda r: replace(r, sizes=r.sizes[:1]),
        lambda r: replace(r, slots=np.array([1, 1], np.uint32)),
        lambda r: replace(r, slots=np.array([1, 5000], np.uint32)),
        lambda r: replace(r, blob=r.blob + b"x"),
        lambda r: replace(r, ends=r.ends[::-1].copy()),
        lambda r: replace(r, parent_ends=np.array([0, 9], np.uint32)),
        lambda r: replace(r, sizes=np.array([1, 2**63], np.uint64)),
        lambda r: report([(b"k%d" % i, b"", i, 0) for i in range(33_000)]),
    ],
)
def test_a_broken_report_changes_nothing(pool: Pool, broken: object) -> None:
    chunk = broken(report([(b"a", b"", 5, 1), (b"b", b"a", 6, 1)]))  # type: ignore[operator]
    with pytest.raises(BadInput):
        take(pool, pool.catalog.segments[0], chunk)
    assert len(pool.catalog.table) == 0


def test_an_empty_report(pool: Pool) -> None:
    assert take(pool, pool.catalog.segments[0], report([])) == []
    assert pool.catalog.segments[0].known


def test_an_inventory_that_broke_off_is_taken_up_again(pool: Pool) -> None:
    segment = pool.catalog.segments[0]
    entries = [(b"a", b"", 5, 1), (b"b", b"", 6, 1)]
    progress = pool.catalog.inventory.begin(segment)
    nothing = np.zeros(1, np.bool_)
    pool.catalog.inventory.take(
        segment, progress, report(entries[:1]), lambda _: nothing, pool.now, 0
    )
    assert take(pool, segment, report(entries)) == []
    assert pool.catalog.table.list_length(0) == 2
    pool.check()
