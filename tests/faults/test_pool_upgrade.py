"""Two releases in one pool: nodes and masters of the message version before this one."""

from __future__ import annotations

import pytest

from tests.faults.ha_rig import fleet
from tests.faults.test_pool_elections import holds, put

pytestmark = pytest.mark.faults


def test_a_node_of_the_release_before(etcd: str) -> None:
    """It does not report to masters that stand by: the next leader asks it for all it has."""
    with fleet(etcd, nodes=0) as made:
        made.add_node(older=True)
        made.add_node()
        pool = made.connect(timeout_ms=20_000)
        for i in range(20):
            put(pool, f"k{i}", replicas=2)
        followed = int(made.stat(made.standbys()[0])["replicas"])
        assert followed <= 20  # of the one node that reports to it
        made.leader().kill()
        put(pool, "after", replicas=2)
        assert all(holds(pool, f"k{i}") for i in range(20))
        assert int(made.stat(made.leader())["replicas"]) == 42


def test_masters_are_replaced_one_after_the_other(etcd: str) -> None:
    """Masters of the release before, with nodes and clients of this one; then masters of this."""
    with fleet(etcd, masters=0, nodes=0) as made:
        old = [made.add_master(older=True) for _ in range(2)]
        made.add_node()
        pool = made.connect(timeout_ms=20_000)
        put(pool, "a")
        for one in old:
            made.add_master()
            one.process.terminate()
            assert one.process.wait(20) == 0
            put(pool, f"after {one.address}")
            assert holds(pool, "a")
        made.await_followed(3)
        made.leader().kill()
        assert holds(made.connect(timeout_ms=20_000), "a")
