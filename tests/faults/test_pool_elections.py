"""Several masters over a real etcd: the leader killed, stopped and woken; etcd itself lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from moonpool.bench.etcd_server import EtcdServers
from moonpool.core.clock import Deadline, SystemClock
from moonpool.core.errors import AttemptLost
from moonpool.pool import messages as m
from moonpool.pool.aio import connect as aio_connect
from moonpool.pool.columns import pack_keys
from moonpool.pool.link import BlockingLink
from moonpool.pool.pool import Pool
from moonpool.pool.results import PutStatus, RemoveStatus
from tests.faults.ha_rig import Child, Fleet, fleet
from tests.faults.pool_rig import KIB, eventually, stamp

pytestmark = pytest.mark.faults


@pytest.fixture
def pair(etcd: str) -> Iterator[Fleet]:
    """Two masters, two nodes."""
    with fleet(etcd) as made:
        yield made


def put(pool: Pool, key: str, size: int = 4 * KIB, replicas: int = 1) -> None:
    assert pool.put(key, stamp(key, size), replicas=replicas).status is PutStatus.STORED


def holds(pool: Pool, key: str, size: int = 4 * KIB) -> bool:
    found = pool.get(key)
    assert found is None or found == stamp(key, size), f"wrong bytes of {key}"
    return found is not None


def test_a_hot_standby_takes_over_with_everything(pair: Fleet) -> None:
    pool = pair.connect(timeout_ms=20_000)
    for i in range(50):
        put(pool, f"k{i}", replicas=1 + i % 2)
    pool.remove(["k0"])
    pair.await_followed(49)
    leader = pair.leader()
    term = int(pair.stat(leader)["term"])
    leader.kill()
    put(pool, "after")  # waits for the next leader, within its deadline
    assert not holds(pool, "k0")
    assert all(holds(pool, f"k{i}") for i in range(1, 50))
    stat = pair.stat(pair.leader())
    assert int(stat["term"]) > term
    assert int(stat["objects"]) == 50
    fresh = pair.connect(timeout_ms=20_000)
    assert holds(fresh, "k7") and holds(fresh, "after")


def test_a_leader_that_ends_in_peace_is_followed_at_once(pair: Fleet) -> None:
    pool = pair.connect(timeout_ms=20_000)
    put(pool, "k")
    pair.await_followed(1)
    leader = pair.leader()
    leader.process.terminate()
    assert leader.process.wait(20) == 0
    put(pool, "after")
    assert holds(pool, "k")


def test_a_leader_stopped_and_woken_is_refused_by_every_agent(etcd_members: EtcdServers) -> None:
    with fleet(etcd_members.url("pool")) as made:
        pool = made.connect(timeout_ms=20_000)
        for key in ("a", "b", "c"):
            put(pool, key, replicas=2)
        made.await_followed(3)
        old = made.leader()
        # A client that knows no other master than this one.
        stuck = made.connect(old.address, timeout_ms=20_000, cache_entries_max=0)
        old.stop()
        put(pool, "d", replicas=2)
        new = made.leader()
        assert new is not old
        assert isinstance(_lease(new, "b"), m.Leased)
        # It cannot learn that it was replaced, and goes on as if it were not.
        for member in range(3):
            etcd_members.stop(member)
        old.wake()
        eventually(lambda: made.stands_by(old) is False, "the old leader answers")
        # One agent that obeyed would be enough for it.
        with pytest.raises(AttemptLost, match=r"0 of 2 copies written.*stale_term"):
            stuck.put("e", stamp("e", KIB), replicas=2, min_replicas=1)
        assert stuck.remove(["a"], timeout_s=2.0) != [RemoveStatus.REMOVED]
        refused = _lease(old, "b")
        assert isinstance(refused, m.Failure) and refused.code == "not_leader"
        assert all(holds(pool, key) for key in ("a", "b", "c", "d"))
        assert not holds(pool, "e")
        for member in range(3):
            etcd_members.wake(member)
        eventually(lambda: made.stands_by(old), "the old leader stands by")
        put(pool, "f", replicas=2)
        made.await_followed(5)
        assert made.standbys() == [old]
        # All changes up to f's two copies were told, and none of the others was retired.
        eventually(lambda: made.stat(old)["replicas"] == 10, "both copies of all five")
        assert all(holds(pool, key) for key in ("a", "b", "c", "d", "f"))


def test_the_pool_goes_on_while_etcd_is_away(etcd_members: EtcdServers) -> None:
    with fleet(etcd_members.url("pool")) as made:
        pool = made.connect(timeout_ms=20_000)
        put(pool, "a")
        made.leader()
        for member in range(3):
            etcd_members.stop(member)
        for i in range(10):
            put(pool, f"k{i}")
            assert holds(pool, f"k{i}")
        assert pool.remove(["k0"]) == [RemoveStatus.REMOVED]
        for member in range(3):
            etcd_members.wake(member)
        put(pool, "b")
        assert holds(pool, "a") and holds(pool, "k9")


def test_fail_over_under_load_loses_nothing(etcd_members: EtcdServers) -> None:
    """The leader is killed three times, a new master started each time, under four clients."""
    with fleet(etcd_members.url("pool"), masters=3) as made:
        over = threading.Event()
        acknowledged: list[list[str]] = [[] for _ in range(4)]
        wrong: list[str] = []

        def work(number: int) -> None:
            pool = made.connect(timeout_ms=20_000)
            count = 0
            while not over.is_set():
                key = f"w{number}-{count}"
                count += 1
                result = pool.put(key, stamp(key, 2 * KIB), replicas=1 + count % 2)
                if result.status is PutStatus.STORED:
                    acknowledged[number].append(key)
                known = acknowledged[number]
                if known:
                    back = known[(count * 7919) % len(known)]
                    found = pool.get(back)
                    if found is not None and found != stamp(back, 2 * KIB):
                        wrong.append(back)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        try:
            for round_number in range(3):
                before = sum(map(len, acknowledged))
                eventually(lambda b=before: sum(map(len, acknowledged)) > b + 50, "work goes on")  # type: ignore[misc]
                made.leader().kill()
                if round_number == 1:
                    etcd_members.kill(0)
                made.add_master()
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert not wrong
        reader = made.connect(timeout_ms=20_000)
        keys = [key for some in acknowledged for key in some]
        assert len(keys) > 150
        lost = [key for key in keys if not holds(reader, key, 2 * KIB)]
        assert not lost


def _lease(old: Child, key: str) -> m.Message:
    """What a master says to a client that wants the memory of `key` kept for a while."""
    deadline = Deadline.after(SystemClock().monotonic(), 10)
    link = BlockingLink(old.address, "", "tester", deadline)
    try:
        found = link.request(m.Lookup(pack_keys([key.encode()])), deadline)
        assert isinstance(found, m.Found)
        return link.request(m.Lease(0, found.row, found.sequence, 1000), deadline)
    finally:
        link.close()


async def test_an_asyncio_client_follows_the_leader(etcd: str) -> None:
    with fleet(etcd, nodes=1) as made:
        pool = await aio_connect(etcd, token="", timeout_s=20)
        assert (await pool.put("a", stamp("a", KIB))).ok
        made.await_followed(1)
        leader = made.leader()
        leader.stop()  # its connection stays open, and nobody answers there
        assert (await pool.put("b", stamp("b", KIB))).ok
        assert await pool.get("a") == stamp("a", KIB)
        await pool.close()
