"""Child processes: up together, down together, and no orphan when something goes wrong."""

import subprocess
import sys
import time

import pytest

from moonpool.core.errors import NotReady
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.pool.children import first_line
from moonpool.pool.cluster import START_S, Cluster, start_s


def test_a_child_that_cannot_start_says_why() -> None:
    # A port that only the superuser may take and the kernel has no address for.
    cluster = Cluster(MasterConfig(host="localhost.invalid", token="x" * 32, port=0), [])
    with pytest.raises(NotReady, match="the master process ended: "):
        cluster.start()
    assert cluster.children == []


def test_a_silent_child_is_given_up_at_the_deadline() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], stdout=subprocess.PIPE
    )
    try:
        assert first_line(process, time.monotonic() + 0.05) == b""
    finally:
        process.kill()
        process.communicate()


def test_large_nodes_have_longer_to_touch_their_memory() -> None:
    # 13 s a GiB were seen; the nodes of one machine share what it gives.
    large = NodeConfig(memory=64 << 30)
    assert start_s([]) == START_S
    assert start_s([large]) >= START_S + 13 * 64
    assert start_s([large, large]) >= START_S + 13 * 128
