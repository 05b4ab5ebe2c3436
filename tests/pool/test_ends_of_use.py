"""How a pool, its views and its sessions end when used in ways that cannot go well."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

import moonpool
from moonpool.core.errors import BadInput
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.pool.cluster import Cluster, local_directory
from moonpool.pool.results import PutStatus


@pytest.fixture
def pool() -> Iterator[moonpool.Pool]:
    with moonpool.Pool.local(memory="8MiB") as pool:
        yield pool


def test_a_view_with_slices_closes_when_they_are_gone(pool: moonpool.Pool) -> None:
    pool.put("key", b"0123456789")
    view = pool.view("key")
    assert view.data is not None
    piece = view.data[2:4]
    with pytest.raises(BufferError):
        view.close()
    assert bytes(piece) == b"23"
    piece.release()
    view.close()
    assert view.data is None


def test_a_forgotten_view_is_not_counted_for_ever(pool: moonpool.Pool) -> None:
    pool.put("key", b"0123456789")
    view = pool.view("key")
    assert view.data is not None
    piece = view.data[2:4]
    del view
    assert bytes(piece) == b"23"
    assert pool._pins.bytes == 0


def test_more_copies_than_possible_is_bad_input(pool: moonpool.Pool) -> None:
    with pytest.raises(BadInput, match="replicas must be 1 to 8, not 9"):
        pool.put("key", b"1", replicas=9)


@pytest.mark.parametrize("buffer", [b"read-only", 7])
def test_a_buffer_that_cannot_be_filled_is_bad_input(pool: moonpool.Pool, buffer: object) -> None:
    pool.put("key", b"1")
    for _ in range(2):  # at the second its place is known
        with pytest.raises(BadInput):
            pool.get_into("key", buffer)
        pool.get("key")


IN_A_CHILD = """
import os, sys
import moonpool
from moonpool.core.errors import Closed
pool = moonpool.Pool.local(memory="8MiB")
pool.put("key", b"1")
assert pool.get("key") == b"1"
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for call in (pool.get, pool.view, pool.exists):
    try:
        call("key")
    except Closed:
        continue
    os._exit(1)
os._exit(0)
"""


def test_a_forked_child_is_told_so_by_every_call() -> None:
    # Newer Pythons warn of forking beside threads, which is what this is about.
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", IN_A_CHILD], timeout=60)
    assert done.returncode == 0


def test_a_write_session_that_is_late_is_lost() -> None:
    with local_directory("test") as directory:
        node = NodeConfig(name="node0", memory=8 << 20, dir=str(directory), persist=False)
        master = MasterConfig(port=0, nodes_expected=1, reservation_ms=50)
        with Cluster(master, [node]) as cluster, moonpool.connect(cluster.address) as pool:
            session = pool.write_session(["late"], [10])
            session.write(0, [b"0123456789"])
            while pool.stat()["reservations"]:
                time.sleep(0.01)
            assert [result.status for result in session.commit()] == [PutStatus.LOST]
            assert not pool.exists("late")
