"""A node that lends device memory as a tier, over plain memory (`vram_device = "cpu"`)."""

from __future__ import annotations

from typing import Any

import pytest

from moonpool.pool.results import Miss, MissReason, RemoveStatus
from tests.faults.pool_rig import MIB, counter, eventually, live_nodes, running, stamp

pytestmark = pytest.mark.faults

SIZE = 100_000
KEYS = [f"k{i:02d}" for i in range(60)]  # thrice what memory holds


def test_what_memory_gives_up_is_read_from_the_device_and_goes_with_the_node() -> None:
    vram = {"vram": 16 * MIB, "vram_device": "cpu"}
    with running(nodes=1, memory=2 * MIB, node=vram, offload="write") as rig:
        pool = rig.connect()
        for key in KEYS:
            assert pool.put(key, stamp(key, SIZE)).ok
            eventually(lambda: counter(pool, "offload_queue") == 0, "the device keeps up")
        eventually(lambda: counter(pool, "tier_objects") == len(KEYS), "all are on the device")
        segments: Any = pool.stat()["segments"]
        assert [one["medium"] for one in segments.values()].count("vram") == 1
        for key in KEYS:
            assert pool.get(key) == stamp(key, SIZE), key
        assert pool.get_range(KEYS[0], 500, 1000) == stamp(KEYS[0], SIZE)[500:1500]
        pool.flush()
        stat: Any = pool.stat()
        assert stat["tier_reads_on"]["vram"] > 30 and stat["evicted_objects"] == 0
        assert stat["read_s"]["vram"]["count"] > 30
        assert pool.remove(KEYS[0]) is RemoveStatus.REMOVED and pool.get(KEYS[0]) is None
        rig.kill(rig.nodes[0])
        rig.restart()
        after = rig.connect()
        eventually(lambda: live_nodes(after) == 2, "memory and device are back")
        held = [key for key in KEYS if after.exists(key)]
        assert 0 < len(held) < 30 and KEYS[0] not in held
        assert all(after.get(key) == stamp(key, SIZE) for key in held)
        lost = next(key for key in KEYS[1:] if key not in held)
        assert after.get_many([lost]) == [Miss(MissReason.UNREACHABLE)]
        assert after.put(lost, b"anew", replace=True).ok and after.get(lost) == b"anew"
