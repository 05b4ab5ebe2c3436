"""The file: cut, damaged, foreign; and what the master's shell does with it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from moonpool.core.clock import ManualClock
from moonpool.core.errors import BadConfig, BadFrame, Corrupt
from moonpool.core.sections import MasterConfig
from moonpool.pool.master import MasterServer
from moonpool.pool.snapshot.format import MAGIC, Part, frame_of
from tests.pool.master_world import MasterWorld
from tests.pool.snapshot.rig import contents, restart, saved_of, settle, snapshot


@pytest.fixture(scope="module")
def data() -> bytes:
    world = MasterWorld()
    for _ in range(2):
        world.add_node()
    world.put(world.client(), [b"key%d" % number for number in range(40)], replicas=2)
    settle(world)
    return snapshot(world)


def test_cut_anywhere_it_is_no_snapshot(data: bytes) -> None:
    assert len(saved_of(data)) == 2
    for length in range(len(data)):
        with pytest.raises((BadFrame, Corrupt)):
            saved_of(data[:length])


def test_flipped_anywhere_it_is_found_out(data: bytes) -> None:
    for at in range(0, len(data), 7):
        broken = bytearray(data)
        broken[at] ^= 0x40
        with pytest.raises((BadFrame, Corrupt)):
            saved = saved_of(bytes(broken))
            for segment in saved._segments.values():
                for place in segment.places:
                    saved.rows(place)


def test_another_version_and_what_follows_the_end_are_refused(data: bytes) -> None:
    with pytest.raises(BadFrame, match="no snapshot of this version"):
        saved_of(b"MPSNAP\x02\x00" + data[len(MAGIC) :])
    with pytest.raises(BadFrame, match="not written to its end"):
        saved_of(data + frame_of(Part(bytes(16), 1, 1)))


def config_of(path: Path, **more: object) -> MasterConfig:
    return MasterConfig(port=0, snapshot=str(path), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["cut", "empty", "foreign", "folder"])
def test_a_file_that_is_no_good_is_ignored_with_one_line(
    what: str, data: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "catalog"
    if what == "folder":
        path.mkdir()
    else:
        path.write_bytes({"cut": data[:-3], "empty": b"", "foreign": b"x" * 999}[what])
    with caplog.at_level(logging.INFO):
        server = MasterServer(config_of(path), ManualClock())
    assert len(server.machine.nodes.links.endpoints()) == 0
    (line,) = caplog.records
    assert line.levelno == logging.WARNING and str(path) in line.message


def test_no_file_is_no_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        MasterServer(config_of(tmp_path / "none"), ManualClock())
    assert caplog.records == []


def test_a_master_that_knows_no_node_leaves_the_file_as_it_is(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "catalog"
    path.write_bytes(data)

    async def life() -> None:
        server = MasterServer(config_of(path, grace_ms=0, snapshot_interval_s=0.1))
        await server.start()
        await asyncio.sleep(0.3)
        await server.stop()

    asyncio.run(life())
    assert path.read_bytes() == data
    assert [one.name for one in tmp_path.iterdir()] == ["catalog"]


def test_what_a_node_needs_that_answers_late_is_still_read(tmp_path: Path) -> None:
    """The next snapshot was written meanwhile, of the node that had answered."""
    world = MasterWorld()
    for _ in range(2):
        world.add_node()
    world.put(world.client(), [b"key%d" % number for number in range(40)], replicas=2)
    settle(world)
    before = contents(world)
    path = tmp_path / "catalog"
    path.write_bytes(snapshot(world))
    server = MasterServer(config_of(path, grace_ms=0, rows_max=4096), ManualClock())
    assert server._snapshots is not None
    restart(world, None, join=False)
    world.master = server.machine
    late = world.nodes[1]
    late.deaf = True
    for node in world.nodes:
        world.join(node)
    settle(world)
    asyncio.run(server._snapshots._write())
    assert len(saved_of(path.read_bytes())) == 1
    late.deaf = False
    world.pump(late)
    assert contents(world) == before
    assert world.stat(world.client())["restored_segments"] == 2
    asyncio.run(server._snapshots.close())
    assert server._snapshots._descriptor == -1


def test_several_masters_and_a_snapshot_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="drop one of the two"):
        config_of(tmp_path / "catalog", ha="etcd://127.0.0.1:2379/pool").check()
