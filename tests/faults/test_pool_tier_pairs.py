"""The disk tier together with what else a pool has: tenants, whose quotas count memory alone, and
an election while most objects are on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moonpool.core.status import BlockStatus
from moonpool.pool.pool import Pool
from moonpool.pool.port_tier import TierPort
from moonpool.pool.ports import ReadCall, ReadRangeCall
from moonpool.pool.results import RemoveStatus
from tests.faults.ha_rig import fleet
from tests.faults.pool_rig import MIB, Rig, counter, eventually, stamp
from tests.faults.tenant_rig import TOKENS, tenant_pool, visitor

pytestmark = pytest.mark.faults

SIZE = 100_000
QUOTA = 2 * MIB
KEYS = [f"k{i:03d}" for i in range(60)]  # thrice the quota


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    lines = {"a": f"quota_bytes = {QUOTA}\nborrow = false"}
    with tempfile.TemporaryDirectory(prefix="moonpool-faults-", dir="/dev/shm") as folder:
        disk = {"disk": f"{folder}/disk", "disk_size": 64 * MIB}
        settings: dict[str, Any] = {
            "offload": "write",
            "promote_reads": 0,
        }  # nothing moves by reads
        with tenant_pool(Path(folder), lines=lines, node=disk, **settings) as made:
            yield made


def fill(pool: Pool, keys: list[str], operator: Pool) -> None:
    for key in keys:
        assert pool.put(key, stamp(key, SIZE)).ok
        eventually(lambda: counter(operator, "offload_queue") == 0, "the disk keeps up")


def held(operator: Pool, name: str) -> dict[str, Any]:
    tenants: Any = operator.stat()["tenants"]
    return dict(tenants[name])


def test_a_quota_counts_memory_and_what_is_on_disk_beside(rig: Rig) -> None:
    with visitor(rig, "a") as a, visitor(rig, "") as operator:
        fill(a, KEYS, operator)
        eventually(lambda: counter(operator, "tier_objects") == len(KEYS), "all are on disk")
        assert counter(operator, "tier_committed_bytes") == len(KEYS) * SIZE > 2 * QUOTA
        assert 0 < held(operator, "a")["committed_bytes"] <= QUOTA
        for key in KEYS:  # what the quota pushed out of memory is a hit all the same
            assert a.get(key) == stamp(key, SIZE), key
        assert a.remove(KEYS) == [RemoveStatus.REMOVED] * len(KEYS)
        assert held(operator, "a")["committed_bytes"] == 0


def test_what_a_tenant_has_on_disk_is_nobody_elses(rig: Rig) -> None:
    """Neither by keys nor at the disk's own door, where its very slots are asked for."""
    with visitor(rig, "a") as a, visitor(rig, "b") as b, visitor(rig, "") as operator:
        fill(a, KEYS, operator)
        fill(b, KEYS[:2], operator)
        eventually(lambda: counter(operator, "tier_objects") == len(KEYS) + 2, "all are on disk")
        assert b.get(KEYS[0]) == stamp(KEYS[0], SIZE)
        assert [b.get(key) for key in KEYS[2:]] == [None] * (len(KEYS) - 2)
        operator.put("way", b"x")  # now it knows where the segments are
        ends = operator._shell.state.endpoints.values()
        (tier,) = [one for one in ends if one.medium == "disk"]
        assert all(a.get(key) for key in KEYS)
        places = [
            one
            for placement in a._shell.state.cache.values()
            for one in placement.replicas
            if isinstance(one.port, TierPort)
        ]
        assert len(places) >= 10
        slots = np.array([one.slot for one in places], np.uint32)
        generations = np.array([one.generation for one in places], np.uint64)
        offsets = np.zeros(slots.size, np.uint64)
        for name, status in (("a", BlockStatus.OK), ("b", BlockStatus.REFUSED)):
            room, some = ([bytearray(n) for _ in places] for n in (SIZE, 16))
            with closing(TierPort(tier.tcp, TOKENS[name], tier.incarnation, "n0")) as port:
                whole = port.start(ReadCall(slots, generations, room, True), 30)()
                ranges = port.start(ReadRangeCall(slots, generations, offsets, some), 30)()
            assert (whole.status == status).all() and (ranges.status == status).all()
            assert all(any(one[:16]) is (name == "a") for one in room + some)


def test_the_lead_changes_while_objects_are_on_disk_only(etcd: str) -> None:
    """Who takes it has followed the disk as well as memory: nothing is lost, nothing comes back."""
    with fleet(etcd, nodes=1, memory=4 * MIB, disk_size=64 * MIB, offload="write") as made:
        pool = made.connect(timeout_ms=20_000)
        fill(pool, KEYS, pool)
        eventually(lambda: counter(pool, "tier_objects") == len(KEYS), "all are on disk")
        assert counter(pool, "demoted") > 0
        removed, kept = KEYS[::10], [key for key in KEYS if key not in KEYS[::10]]
        assert pool.remove(removed) == [RemoveStatus.REMOVED] * len(removed)
        made.await_followed(len(kept))
        term = counter(pool, "term")
        made.leader().kill()
        assert pool.put("after", stamp("after", SIZE)).ok
        for key in kept:
            assert pool.get(key) == stamp(key, SIZE), key
        assert pool.exists(removed) == [False] * len(removed)
        assert counter(pool, "term") > term
        eventually(lambda: counter(pool, "tier_objects") == len(kept) + 1, "offload goes on")
