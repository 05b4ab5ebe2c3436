"""Groups: read as one, evicted as one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from moonpool.pool.catalog import groups
from moonpool.pool.messages import PutStatus as S
from tests.pool.catalog.harness import SMALL, Pool

SOFT, HARD, HIGH = 1, 2, 8
GROUP = [b"g0", b"g1", b"g2"]
POLICIES = ["lru", "lfu", "sieve", "arc", "s3fifo", "horizon"]


@pytest.fixture(params=POLICIES)
def pool(request: pytest.FixtureRequest) -> Pool:
    pool = Pool(replace(SMALL, eviction=request.param))
    pool.add_segment(8)
    return pool


def lru(capacity: int = 8) -> Pool:
    pool = Pool()
    pool.add_segment(capacity)
    return pool


def test_all_of_a_group_go_in_one_step(pool: Pool) -> None:
    pool.put(GROUP, group=b"g")
    pool.put([b"a", b"b", b"c", b"d", b"e"])
    pool.touch([b"a", b"b", b"c", b"d", b"e"] * 2)
    assert pool.put([b"x"]) == [S.COMMITTED]
    assert pool.found(GROUP) == []
    assert len(pool.found([b"a", b"b", b"c", b"d", b"e"])) == 5, "what they freed is enough"
    pool.check()


def test_a_read_of_one_counts_for_all() -> None:
    pool = lru()
    pool.put(GROUP, group=b"g")
    pool.put([b"a", b"b", b"c", b"d", b"e"])
    pool.touch([b"g1"])
    pool.put([b"v", b"w", b"x", b"y", b"z"])
    assert pool.found(GROUP) == GROUP
    assert pool.found([b"a", b"b", b"c", b"d", b"e"]) == []


def test_where_one_may_not_go_all_stay(pool: Pool) -> None:
    pool.put(GROUP[:2], group=b"g")
    pool.put(GROUP[2:], group=b"g", pin=HARD)
    pool.put([b"a", b"b", b"c", b"d", b"e"])
    for number in range(6):
        assert pool.put([b"x%d" % number]) == [S.COMMITTED]
        assert pool.found(GROUP) == GROUP
    pool.check()


def test_a_leased_one_keeps_the_others_until_the_lease_ends(pool: Pool) -> None:
    pool.put(GROUP, 2, group=b"g")
    table = pool.catalog.table
    row = pool.row(b"g2")
    lease, granted, _ = pool.catalog.leases.take(1, [row], table.seq[[row]], 1000, pool.now)
    assert granted.tolist() == [1]
    pool.put([b"a"], 2)
    assert pool.put([b"x"], 4) == [S.FULL]
    pool.catalog.leases.release(1, lease)
    assert pool.put([b"x"], 4) == [S.COMMITTED]
    assert pool.found(GROUP) == []


def test_a_group_stands_as_firmly_as_the_firmest_of_it(pool: Pool) -> None:
    pool.put(GROUP[:2], 1, group=b"g")
    pool.put(GROUP[2:], 1, group=b"g", pin=SOFT)
    pool.put([b"a"], 5, pin=HIGH)
    assert pool.put([b"x"], 5) == [S.COMMITTED]
    assert pool.found([*GROUP, b"a"]) == GROUP
    assert pool.put([b"y"], 8) == [S.COMMITTED], "and then it goes"
    pool.check()


def test_what_hangs_below_goes_along_and_parents_outside_stay() -> None:
    pool = lru()
    pool.put([b"g1"], group=b"g")
    pool.put([b"root"])
    pool.put([b"g0"], parents=[-2], outside=[b"root"], group=b"g")
    pool.put([b"child"], parents=[-2], outside=[b"g0"])
    pool.put([b"a", b"b", b"c", b"d"])
    pool.put([b"x"])
    assert pool.found([b"root", b"g0", b"child", b"g1"]) == [b"root"]
    pool.check()


def test_a_new_value_belongs_to_the_group_of_its_own_put() -> None:
    pool = lru()
    pool.put(GROUP, group=b"g")
    pool.put([b"g0"], replace=True)
    pool.put([b"a", b"b", b"c", b"d", b"e"])
    pool.put([b"x"])
    assert pool.found(GROUP) == [b"g0"]
    pool.put([b"g0"], replace=True, group=b"g")
    pool.put([b"g1"], group=b"g")
    assert len(pool.catalog.rows.groups) == 1
    pool.put([b"g0", b"g1"], replace=True)
    assert len(pool.catalog.rows.groups) == 0


def test_nobody_elses_group_has_that_name() -> None:
    pool = lru()
    pool.put([b"g0"], group=b"g")
    pool.put([b"theirs"], group=b"g", tenant=7)
    pool.put([b"a", b"b", b"c", b"d", b"e", b"f"])
    pool.put([b"x"])
    assert pool.found([b"g0", b"theirs"]) == [b"theirs"]
    assert len(pool.catalog.rows.groups) == 1


def test_one_that_finds_its_group_full_stands_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MEMBERS_MAX", 2)
    pool = lru()
    pool.put(GROUP, group=b"g")
    assert pool.catalog.rows.groups.overflowed == 1
    pool.put([b"a", b"b", b"c", b"d", b"e"])
    pool.put([b"x"])
    assert pool.found(GROUP) == GROUP[:2], "the last of a batch is the oldest"
    pool.put([b"y"])
    assert pool.found(GROUP) == []


def test_an_orphan_goes_without_the_others() -> None:
    pool = lru()
    pool.put([b"p", b"g0"], chain=True, group=b"")
    pool.put([b"g0"], parents=[-2], outside=[b"p"], replace=True, group=b"g")
    pool.put([b"g1"], group=b"g")
    pool.remove([b"p"])
    pool.put([b"a", b"b", b"c", b"d", b"e", b"f"])
    pool.put([b"x"])
    assert pool.found([b"g0", b"g1"]) == [b"g1"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(8))
def test_a_group_is_whole_or_gone(policy: str, seed: int) -> None:
    """Whatever is put, read and evicted: groups in chains, over two segments, on two copies."""
    draw = random.Random(seed)
    pool = Pool(replace(SMALL, eviction=policy), seed)
    for _ in range(2):
        pool.add_segment(24)
    for _ in range(300):
        number = draw.randrange(12)
        keys = [b"%d/%d" % (number, i) for i in range(1 + number % 4)]
        if draw.random() < 0.4:
            pool.touch([key for key in keys if pool.found([key])])
            continue
        status = pool.put(
            keys,
            draw.randint(1, 3),
            chain=number % 2 == 0,
            replicas=1 + number % 3 // 2,
            group=b"%d" % number,
        )
        assert set(status) <= {S.COMMITTED, S.EXISTS, S.FULL, S.PARENT_MISSING}, (seed, status)
        for group in range(12):
            size = 1 + group % 4
            found = pool.found([b"%d/%d" % (group, i) for i in range(size)])
            if group != number:
                assert len(found) in (0, size), (seed, group, found)
        pool.check()
