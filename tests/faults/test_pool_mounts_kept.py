"""Further segments outlive whoever leads: a standby takes them over, and a snapshot names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moonpool.core.errors import MoonpoolError
from moonpool.pool.node_control import control_of, tell_node
from moonpool.pool.pool import Pool
from tests.faults.ha_rig import fleet
from tests.faults.pool_rig import MIB, counter, eventually, live_nodes, running, stamp
from tests.faults.test_pool_mounts import SIZES

pytestmark = pytest.mark.faults


def tell(folder: Path, do: str, **order: Any) -> Any:
    return tell_node(control_of(folder, "n0"), 60.0, do=do, **order)


def given_back(folder: Path) -> None:
    eventually(lambda: tell(folder, "mounts")["segments"] == [], "the segment is given back")
    eventually(lambda: not list(folder.glob("n0@*")), "its file is gone")


def served(pool: Pool, segments: int) -> None:
    def so() -> bool:
        try:
            return live_nodes(pool) == segments
        except MoonpoolError:  # nobody leads
            return False

    eventually(so, f"{segments} segments serve")


def segments_of(pool: Pool) -> dict[str, Any]:
    found = pool.stat()["segments"]
    assert isinstance(found, dict)
    return found


def whole(pool: Pool) -> None:
    def so() -> bool:
        try:
            return all(pool.get(key) == stamp(key, size) for key, size in SIZES.items())
        except MoonpoolError:
            return False

    eventually(so, "all is readable")


def fill(pool: Pool) -> None:
    for key, size in SIZES.items():
        assert pool.put(key, stamp(key, size)).ok


@pytest.mark.parametrize("when", ["mounted", "leaving", "gone"])
def test_a_standby_takes_it_over(etcd: str, when: str) -> None:
    with fleet(etcd, masters=2, nodes=2, memory=8 * MIB) as made:
        pool, folder = made.connect(timeout_ms=20_000), made._folder
        served(pool, 2)
        tell(folder, "mount", size=12 * MIB)
        served(pool, 3)
        fill(pool)
        made.await_followed(len(SIZES))
        if when != "mounted":
            tell(folder, "unmount", segment=2)
        if when == "gone":
            given_back(folder)
        made.leader().kill()
        made.leader()
        whole(pool)
        if when == "mounted":
            served(pool, 3)
            tell(folder, "unmount", segment=2)
        given_back(folder)
        served(pool, 2)
        assert len(segments_of(pool)) == 2, "what was given back is not waited for"
        whole(made.connect(timeout_ms=20_000))


def written(pool: Pool, file: Path) -> None:
    """Two more than there was: the second was begun after this call."""
    seen = {0}

    def another() -> bool:
        assert pool.put("poke", b"again", replace=True).ok
        number = file.stat().st_mtime_ns if file.exists() else 0
        fresh = number not in seen
        seen.add(number)
        return fresh

    for _ in range(3):  # the first may have been there before
        eventually(another, "the next snapshot")


@pytest.mark.parametrize("when", ["mounted", "leaving", "gone"])
def test_a_snapshot_from_when_it_was_mounted(tmp_path: Path, when: str) -> None:
    """Also one that is older than what became of the segment."""
    file = tmp_path / "catalog.snapshot"
    with running(nodes=2, memory=8 * MIB, snapshot=str(file), snapshot_interval_s=0.2) as rig:
        pool, folder = rig.connect(), rig.directory
        tell(folder, "mount", size=12 * MIB)
        served(pool, 3)
        fill(pool)
        written(pool, file)
        old = file.read_bytes()
        if when != "mounted":
            tell(folder, "unmount", segment=2)
        if when == "gone":
            given_back(folder)
        rig.kill(rig.master)
        file.write_bytes(old)
        rig.restart()
        whole(pool)
        if when == "mounted":
            served(pool, 3)
            assert counter(pool, "restored_segments") == 3
            tell(folder, "unmount", segment=2)
        given_back(folder)
        served(pool, 2)
        assert len(segments_of(pool)) == 2, "what was given back is not waited for"
        whole(rig.connect())
        assert pool.put("later", stamp("later", 900)).ok
