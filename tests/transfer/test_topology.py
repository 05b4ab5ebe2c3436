"""Topology from made-up sysfs trees, and the ranking of rails over made-up machines."""

from pathlib import Path

import numpy as np
import pytest

from moonpool.core.errors import BadConfig
from moonpool.transfer.affinity import (
    RailPath,
    RailPolicy,
    Ranking,
    check_names,
    names_of,
    ranked,
)
from moonpool.transfer.engine import Engine
from moonpool.transfer.netlink import NO_ROUTE, route_to
from moonpool.transfer.topology import Nic, NumaNode, Topology, discover, node_of_memory

GIB = 1 << 30


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def two_socket_machine(sys: Path) -> Path:
    for node, cpus in ((0, "0-15"), (1, "16-31")):
        write(sys / f"devices/system/node/node{node}/cpulist", cpus)
        write(sys / f"devices/system/node/node{node}/meminfo", f"Node {node} MemTotal:  1048576 kB")
    for name, node, speed, state in (("mlx1", 1, "100000", "up"), ("mlx0", 0, "25000", "down")):
        write(sys / f"class/net/{name}/device/numa_node", str(node))
        write(sys / f"class/net/{name}/speed", speed)
        write(sys / f"class/net/{name}/operstate", state)
        write(sys / f"class/net/{name}/type", "1")
    write(sys / "class/net/lo/type", "772")
    write(sys / "class/net/lo/operstate", "unknown")
    write(sys / "class/net/docker0/operstate", "up")
    write(sys / "class/net/docker0/speed", "-1")
    write(sys / "class/net/bonding_masters", "")
    return sys


MLX0, MLX1 = Nic("mlx0", 0, 25_000, False, "card"), Nic("mlx1", 1, 100_000, True, "card")


def test_a_machine_of_two_sockets(tmp_path: Path) -> None:
    found = discover(two_socket_machine(tmp_path))
    assert found.nodes == (NumaNode(0, "0-15", GIB), NumaNode(1, "16-31", GIB))
    docker, lo = Nic("docker0", -1, 0, True, "virtual"), Nic("lo", -1, 0, True, "loopback")
    assert found.nics == (docker, lo, MLX0, MLX1)
    assert found.nic("mlx0") == MLX0 and found.nic("mlx2") is None
    assert MLX0.described() == "mlx0 (card, node 0, 25 Gb/s, down)"
    assert lo.described() == "lo (loopback)"


def test_nothing_to_read_is_an_empty_topology(tmp_path: Path) -> None:
    assert discover(tmp_path) == Topology((), ())


def test_this_machine_has_a_loopback() -> None:
    found = discover()
    assert any(nic.kind == "loopback" for nic in found.nics)
    assert route_to("127.0.0.1").interface in {nic.name for nic in found.nics}
    assert route_to("127.0.0.2").source.startswith("127.")


def test_no_way_is_no_route() -> None:
    assert route_to("no-such-name.invalid") == NO_ROUTE


def test_the_node_of_memory_is_that_of_most_of_its_pages(tmp_path: Path) -> None:
    maps = tmp_path / "numa_maps"
    maps.write_text(
        "00400000 default file=/bin/x mapped=3 N0=3 kernelpagesize_kB=4\n"
        "7f0000000000 default anon=12 dirty=12 N0=2 N1=10 kernelpagesize_kB=4\n"
        "7f0000100000 default\n"
    )
    assert node_of_memory(0x7F0000000010, maps) == 1
    assert node_of_memory(0x400000, maps) == 0
    assert node_of_memory(0x7F0000100000, maps) == -1
    assert node_of_memory(0x1, maps) == -1 and node_of_memory(5, tmp_path / "none") == -1


def test_touched_memory_of_this_process_is_on_a_node_that_exists() -> None:
    memory = np.ones(1 << 20, dtype=np.uint8)
    nodes = {node.node for node in discover().nodes}
    assert node_of_memory(memory.ctypes.data) in nodes | {-1}


PATHS = [
    RailPath("10.0.1.5:7000", MLX1, MLX1),
    RailPath("10.0.0.5:7000", MLX0, MLX0),
    RailPath("10.0.2.5:7000", MLX0, MLX1),
    RailPath("10.0.3.5:7000"),
]


def ranks(policy: RailPolicy, near: int, far: int) -> dict[str, int | None]:
    return {one.address[:6]: one.rank for one in ranked(PATHS, policy, near, far)}


def test_affinity_counts_ends_that_are_far() -> None:
    affinity = RailPolicy()
    assert ranks(affinity, 0, 0) == {"10.0.0": 0, "10.0.3": 0, "10.0.2": 1, "10.0.1": 2}
    assert ranks(affinity, 1, -1) == {"10.0.1": 0, "10.0.3": 0, "10.0.0": 1, "10.0.2": 1}
    best, *_, worst = ranked(PATHS, affinity, 0, 0)
    assert (
        best.why == "near: mlx0 (card, node 0, 25 Gb/s, down) to mlx0 (card, node 0, 25 Gb/s, down)"
    )
    assert "our mlx1 (card, node 1, 100 Gb/s) is not on node 0" in worst.why


def test_spread_and_single() -> None:
    assert set(ranks(RailPolicy("spread"), 0, 0).values()) == {0}
    assert list(ranks(RailPolicy("single"), 0, 0).values()) == [0, 1, 2, 3]


def test_pin_and_forbid_take_interfaces_addresses_and_hosts() -> None:
    pinned = RailPolicy("spread", pin=names_of("mlx0"))
    assert ranks(pinned, 0, 0) == {"10.0.0": 0, "10.0.2": 0, "10.0.1": None, "10.0.3": None}
    mixed = RailPolicy("spread", names_of("mlx0, 10.0.3.5"), names_of("10.0.2.5:7000"))
    assert ranks(mixed, 0, 0) == {"10.0.0": 0, "10.0.3": 0, "10.0.1": None, "10.0.2": None}
    assert ranked(PATHS, mixed, 0, 0)[-2:] == [
        Ranking("10.0.1.5:7000", None, "not among transfer.rail_pin (10.0.3.5, mlx0)"),
        Ranking("10.0.2.5:7000", None, "forbidden by transfer.rail_forbid (10.0.2.5:7000)"),
    ]


def test_unknown_names_are_refused_with_a_hint() -> None:
    check_names(RailPolicy("spread", names_of("mlx0,10.1.1.1"), names_of("[::1]:5")), ["mlx0"])
    with pytest.raises(BadConfig, match=r"rail_pin names 'mxl0'.*Did you mean 'mlx0'"):
        check_names(RailPolicy("spread", names_of("mxl0")), ["lo", "mlx0"])
    with pytest.raises(BadConfig, match="rail_forbid names 'nowhere0'"):
        Engine(rail_forbid="nowhere0")
    with pytest.raises(BadConfig, match="Did you mean 'affinity'"):
        Engine(rail_policy="afinity")
