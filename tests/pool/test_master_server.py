"""What the master's shell gives its machine."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from moonpool import _core
from moonpool.cli.probes.segments import probe_segments
from moonpool.core.clock import Deadline, ManualClock, SystemClock
from moonpool.core.sections import MasterConfig, default_directory
from moonpool.pool import messages as m
from moonpool.pool.link import AsyncLink, BlockingLink
from moonpool.pool.master import MasterServer
from tests.faults.pool_rig import MIB, Rig, running
from tests.pool.master_world import reserve_message


def test_the_first_term_is_the_wall_clock() -> None:
    """So that a later master rules under a later term, whichever nodes are away."""
    clock = ManualClock(wall_ms=1_700_000_000_123)
    first = MasterServer(MasterConfig(port=0), clock)
    clock.advance(0.001)
    second = MasterServer(MasterConfig(port=0), clock)
    assert first.machine.catalog.term == 1_700_000_000_123
    assert second.machine.catalog.term == 1_700_000_000_124


@pytest.mark.parametrize("timeout_s", [2.0, 60.0])
async def test_a_put_waits_for_the_nodes_as_long_as_its_caller_does(timeout_s: float) -> None:
    """And is answered before the caller gives up. What its message says of that is heard."""
    server = MasterServer(MasterConfig(port=0, grace_ms=600_000))
    link = await AsyncLink.connect(await server.start(), "", "tester")
    asked = asyncio.create_task(link.request(reserve_message([b"a"]), timeout_s))
    while not server.machine._held:
        await asyncio.sleep(0.01)
    due = server.machine._held.next_deadline
    assert due is not None
    assert timeout_s / 2 < due - server.clock.monotonic() < timeout_s
    if timeout_s < 10:
        reply = await asked
        assert isinstance(reply, m.Reserved)
        assert list(reply.status) == [m.PutStatus.RECOVERING]
    else:
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked
    link.close()
    await server.stop()


def link_to(rig: Rig) -> BlockingLink:
    return BlockingLink(rig.address, "", "tester", Deadline.after(SystemClock().monotonic(), 10))


def ask(link: BlockingLink) -> m.Message:
    return link.request(m.Stat(), Deadline.after(SystemClock().monotonic(), 10))


def socket_file(rig: Rig) -> Path:
    return default_directory() / f"master-{rig.address.rpartition(':')[2]}.sock"


def test_a_client_on_the_same_host_comes_by_unix_socket() -> None:
    with running(nodes=1, memory=8 * MIB) as rig:
        link = link_to(rig)
        assert link.over == "unix"
        assert isinstance(ask(link), m.Status)
        link.close()
        path = socket_file(rig)
        assert path.is_socket()
    assert not path.exists()  # a master that ends in peace takes its file along


def test_without_the_file_it_stays_with_tcp() -> None:
    with running(nodes=1, memory=8 * MIB) as rig:
        socket_file(rig).unlink()
        link = link_to(rig)
        assert link.over == "tcp"
        assert isinstance(ask(link), m.Status)
        link.close()


def test_a_file_of_another_master_is_not_taken_for_ours() -> None:
    with running(nodes=1, memory=8 * MIB) as rig, running(nodes=1, memory=8 * MIB) as other:
        mine = socket_file(rig)
        mine.unlink()
        mine.symlink_to(socket_file(other))
        link = link_to(rig)
        assert link.over == "tcp"
        assert isinstance(ask(link), m.Status)
        link.close()


def test_the_file_of_a_master_that_was_killed_is_replaced_by_the_next() -> None:
    with running(nodes=1, memory=8 * MIB) as rig:
        rig.kill(rig.master)
        assert socket_file(rig).is_socket()
        rig.restart()
        link = link_to(rig)
        assert link.over == "unix"
        assert isinstance(ask(link), m.Status)
        link.close()


def test_doctor_removes_the_file_of_a_master_that_was_killed() -> None:
    with running(nodes=1, memory=8 * MIB) as rig:
        folder = rig.directory / "left"
        folder.mkdir(mode=0o700)
        path = folder / "master.sock"
        path.hardlink_to(socket_file(rig))
        probe_segments(folder, _core, clean=True)
        assert path.is_socket()  # somebody listens
        rig.kill(rig.master)
        socket_file(rig).unlink()
        probe_segments(folder, _core, clean=True)
        assert not path.exists()
