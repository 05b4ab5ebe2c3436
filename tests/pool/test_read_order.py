"""Which copy a read tries first: by medium, by way, by place."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from moonpool.pool import messages as m
from moonpool.pool.client_state import ClientState, Placement
from moonpool.pool.ports import Port
from moonpool.pool.protocol import CallMaster, Context
from moonpool.pool.protocol_get import lookup

HERE = "here"


class FakePort:
    def __init__(self, endpoint: m.SegmentEndpoint) -> None:
        self.local = bool(endpoint.path)
        self.kind = (
            "shm" if self.local else "tcp" if endpoint.medium == m.MEMORY else endpoint.medium
        )
        self.node = endpoint.node
        self.incarnation = endpoint.incarnation


def at(node: str, host: str, medium: str = m.MEMORY, path: str = "", **labels: str) -> Any:
    return node, host, medium, path, labels


def order(*segments: Any, labels: dict[str, str] | None = None) -> list[str]:
    """Nodes of one object's copies, which the master names in the order given."""
    state = ClientState(HERE, lambda one: cast(Port, FakePort(one)), labels=labels)
    endpoints = [
        m.SegmentEndpoint(i, bytes([i]) * 16, node, host, path=path, labels=own, medium=medium)
        for i, (node, host, medium, path, own) in enumerate(segments)
    ]
    state.learn(m.TopologyIs(1, 1, endpoints))
    count = len(segments)
    column = m.ReplicaColumn(
        bytes([count]),
        np.arange(count, dtype=np.uint16).tobytes(),
        np.zeros(count, np.uint32).tobytes(),
        np.ones(count, np.uint64).tobytes(),
    )
    one = (
        np.zeros(1, np.int32),
        np.ones(1, np.uint64),
        np.ones(1, np.uint64),
        np.ones(1, np.uint64),
    )
    row, term, sequence, size = (column_.tobytes() for column_ in one)
    found = m.Found(bytes([m.LookupStatus.FOUND]), row, term, sequence, size, bytes(4), column, 1)
    asking = lookup(Context(state, lambda: 0.0, 1.0), [b"k"])
    assert isinstance(next(asking), CallMaster)
    with pytest.raises(StopIteration) as end:
        asking.send(found)
    (placement,) = end.value.value
    assert isinstance(placement, Placement)
    return [replica.port.node for replica in placement.replicas]


def test_memory_comes_before_disk_and_that_before_an_object_store() -> None:
    segments = [at("far", "x", "remote"), at("disk", HERE, "disk"), at("memory", "y")]
    assert order(*segments) == ["memory", "disk", "far"]


def test_mapped_memory_then_this_hosts_then_others() -> None:
    segments = [at("other", "x"), at("beside", HERE), at("mapped", HERE, path="/p")]
    assert order(*segments) == ["mapped", "beside", "other"]


RACKS = [
    at("zone", "x", rack="b", zone="z"),
    at("away", "y", rack="c", zone="w"),
    at("rack", "v", rack="a", zone="z"),
]


def test_the_more_labels_a_node_shares_the_nearer_it_is() -> None:
    assert order(*RACKS, labels={"rack": "a", "zone": "z"}) == ["rack", "zone", "away"]
    assert order(*RACKS) == ["zone", "away", "rack"], "nothing is known: the master's order"


def test_a_clients_place_is_that_of_the_nodes_on_its_host() -> None:
    own = at("own", HERE, rack="a", zone="z")
    assert order(*RACKS, own) == ["own", "rack", "zone", "away"]
    assert order(*RACKS, own, labels={"rack": "c"}) == ["own", "away", "zone", "rack"]
