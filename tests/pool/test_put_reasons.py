"""A put that was not stored names its cause."""

from __future__ import annotations

import pytest

from moonpool.core.errors import Unreachable
from moonpool.pool.client_state import ClientState
from moonpool.pool.messages import SegmentEndpoint, TopologyIs
from moonpool.pool.ports import Port
from moonpool.pool.protocol_reserve import Attempt, PutOptions
from moonpool.pool.put_reasons import ran_out, unsealed
from moonpool.pool.results import PutStatus


def no_port(endpoint: SegmentEndpoint) -> Port:
    raise OSError


def state_with(up: int, away: int = 0) -> ClientState:
    state = ClientState("here", no_port)
    nodes = [
        SegmentEndpoint(i, bytes([i]) * 16, f"n{i}", "h", alive=i < up) for i in range(up + away)
    ]
    state.learn(TopologyIs(1, 1, nodes))
    return state


def test_too_few_nodes_are_counted() -> None:
    result = ran_out(state_with(1, away=2), PutOptions(3, 2), PutStatus.UNREACHABLE)
    assert result.text == "too few nodes: 1 node up, replicas=3, at least 2"
    with pytest.raises(Unreachable, match="too few nodes: 1 node up, replicas=3, at least 2"):
        result.raise_for_status(b"k")


def test_a_deadline_with_too_few_nodes_says_so() -> None:
    assert ran_out(state_with(0), PutOptions(), None).text == (
        "too few nodes: 0 nodes up, replicas=1"
    )


def test_a_deadline_alone_says_what_was_missing() -> None:
    result = ran_out(state_with(1), PutOptions(), None)
    assert (result.status, result.text) == (
        PutStatus.UNREACHABLE,
        "the deadline passed before it was committed",
    )


@pytest.mark.parametrize(
    ("why", "status"),
    [
        ("unreachable refused", PutStatus.UNREACHABLE),
        ("", PutStatus.UNREACHABLE),
        ("no_space", PutStatus.FULL),
        ("moved", PutStatus.LOST),
    ],
)
def test_copies_that_were_not_sealed(why: str, status: PutStatus) -> None:
    attempt = Attempt(0, 0, 1, [], [(0, 1, 1)], why=why)
    result = unsealed(state_with(2), PutOptions(2), attempt)
    assert result.status is status
    assert result.text == (
        f"1 of 2 copies written, 2 nodes up, replicas=2: {why or 'no way to the node'}"
    )
