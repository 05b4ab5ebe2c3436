"""A node that announces an address which nobody else reaches does not join."""

from __future__ import annotations

import socket

import msgspec
import pytest

import moonpool
from moonpool.core.errors import NotReady
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.pool.announced import out_of_reach
from moonpool.pool.cluster import Cluster, local_directory


@pytest.mark.parametrize(
    ("announced", "seen_from", "said"),
    [
        ("127.0.0.1:7401", "10.0.0.7", "only its own host reaches"),
        ("[::1]:7401", "10.0.0.7", "only its own host reaches"),
        ("localhost:7401", "10.0.0.7", "only its own host reaches"),
        ("0.0.0.0:7401", "10.0.0.7", "no address of one host"),
        ("[::]:7401", "::ffff:10.0.0.7", "--host 10.0.0.7"),
        ("nonsense", "10.0.0.7", "nonsense"),
    ],
)
def test_what_only_its_own_host_reaches_is_refused(
    announced: str, seen_from: str, said: str
) -> None:
    why = out_of_reach(announced, seen_from)
    assert said in why and announced in why


@pytest.mark.parametrize(
    ("announced", "seen_from"),
    [
        ("127.0.0.1:7401", "127.0.0.1"),
        ("127.0.0.1:7401", ""),
        ("0.0.0.0:7401", "::1"),
        ("10.0.0.7:7401", "10.0.0.9"),
        ("gpu-7:7401", "10.0.0.9"),
        ("", "10.0.0.9"),
    ],
)
def test_what_others_may_reach_is_not(announced: str, seen_from: str) -> None:
    assert out_of_reach(announced, seen_from) == ""


def own_address() -> str:
    """One of this machine that is not its loopback; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no other address than its loopback")
        return str(probe.getsockname()[0])


@pytest.mark.faults
def test_a_real_node_is_told_and_joins_with_another_address() -> None:
    host = own_address()
    if host.startswith("127."):
        pytest.skip("this machine has no other address than its loopback")
    master = MasterConfig(host=host, port=0, token="t")
    with local_directory("test") as folder:
        node = NodeConfig(name="n0", memory=1 << 20, dir=str(folder), token="t")
        with pytest.raises(NotReady, match=f"--host {host}"):
            Cluster(master, [node]).start(timeout_s=5.0)
        with Cluster(master, [msgspec.structs.replace(node, host=host)]) as pool:
            with moonpool.connect(pool.address, token="t") as client:
                assert client.put("k", b"v").ok
