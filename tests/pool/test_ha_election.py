"""When a master takes the lead, and under which term."""

from __future__ import annotations

import pytest

from moonpool.core.errors import BadFrame
from moonpool.core.etcd import EtcdClient
from moonpool.pool.ha_election import Beat, LeaderRecord, Patience, Seen, next_term
from moonpool.pool.ha_registry import Registry

A = LeaderRecord(5, "a:1", "aa")
NOBODY = Seen(None, 0, Beat(0), 0)


def seen(beat_revision: int, leader: LeaderRecord | None = A) -> Seen:
    return Seen(leader, 3, Beat(1), beat_revision)


def test_nobody_ever_led_or_the_last_one_resigned() -> None:
    assert Patience(1.0).ripe(NOBODY, 0.0, 0.0)
    assert Patience(1.0).ripe(Seen(A, 3, Beat(0), 0), 0.0, 0.0)
    assert Patience(1.0).ripe(Seen(A, 3, Beat(7, ("n0",), resigned=True), 9), 0.0, 0.0)


def test_a_leader_is_given_a_lease_from_its_last_beat() -> None:
    patience = Patience(1.0)
    assert not patience.ripe(seen(10), 0.0, 0.1)
    assert not patience.ripe(seen(10), 1.05, 1.06)  # asked before 0.1 + 1.0
    assert patience.ripe(seen(10), 1.1, 1.2)
    assert not patience.ripe(seen(11), 1.3, 1.4)  # it lives after all
    assert not patience.ripe(seen(11), 2.3, 2.35)
    assert patience.ripe(seen(11), 2.4, 2.5)


def test_a_slow_answer_does_not_shorten_the_lease() -> None:
    """The wait counts from when the answer came: the beat may have been written just before."""
    patience = Patience(1.0)
    assert not patience.ripe(seen(10), 0.0, 5.0)
    assert not patience.ripe(seen(10), 5.9, 5.95)


def test_terms_grow_whatever_the_clock_says() -> None:
    assert next_term(NOBODY, 1000) == 1000
    assert next_term(seen(1), 1000) == 1000
    assert next_term(seen(1), 2) == 6  # a clock that went back
    assert next_term(seen(1), 2, least=50) == 50


def test_the_lead_is_one_master_s_alone(etcd: str) -> None:
    first, second = Registry(etcd), Registry(etcd)
    try:
        before = second.read()
        assert before == NOBODY
        mine = first.claim(first.read(), LeaderRecord(1, "a:1", "aa"), ["n0"])
        assert mine
        assert not second.claim(before, LeaderRecord(1, "b:1", "bb"), [])
        assert first.renew(mine, 1, ["n0", "n1"])
        now = second.read()
        assert now.leader == LeaderRecord(1, "a:1", "aa")
        assert now.beat == Beat(1, ("n0", "n1"))
        first.renew(mine, 2, [])
        assert not second.claim(now, LeaderRecord(2, "b:1", "bb"), [])  # it had renewed
        theirs = second.claim(second.read(), LeaderRecord(2, "b:1", "bb"), [])
        assert theirs
        assert not first.renew(mine, 3, [])
        first.resign(mine, [])  # not its lead any more
        assert not second.read().beat.resigned
        assert second.renew(theirs, 1, ["n0"])
        second.resign(theirs, ["n0"])
        assert first.read().beat == Beat(0, ("n0",), resigned=True)  # clients may still read n0
        with EtcdClient(etcd) as client:
            client.delete(first.leader_key)
        second.resign(theirs, [])  # somebody has cleared the keys
    finally:
        first.close()
        second.close()


def test_masters_are_listed_while_they_live(etcd: str) -> None:
    registry = Registry(etcd)
    registry.enlist("a:1", "aa")
    registry.enlist("a:1", "aa")
    assert registry.read().masters == ("a:1",)
    registry.leave()
    assert registry.read().masters == ()
    registry.close()


def test_keys_that_are_none_of_ours(etcd: str) -> None:
    with EtcdClient(etcd) as client:
        client.put(f"{client.address.prefix}/leader", b"?")
    registry = Registry(etcd)
    with pytest.raises(BadFrame):
        registry.read()
    registry.close()
