"""Reads of known placements: one call to each segment, answers in the order of the keys."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from moonpool.pool.client_state import ClientState, Placement, Replica
from moonpool.pool.ports import Outcome, Port, ReadCall
from moonpool.pool.protocol import CallAgents, CallMaster, Context
from moonpool.pool.protocol_get import fetch
from moonpool.pool.results import Hit


class FakePort:
    local = True

    def __init__(self, node: str) -> None:
        self.node = node


def known(*ports: FakePort) -> tuple[Context, list[bytes]]:
    """Object i, of size and slot i, lies at the i-th port."""
    state = ClientState("here", lambda endpoint: cast(Port, None))
    keys = [b"key%d" % i for i in range(len(ports))]
    for i, (key, port) in enumerate(zip(keys, ports, strict=True)):
        state.remember(key, Placement(i, i, i, (Replica(cast(Port, port), i, 7),)))
    return Context(state, lambda: 0.0, 1.0), keys


def outcome(call: ReadCall) -> Outcome:
    """The answer of a port that writes the slot into each buffer."""
    for slot, buffer in zip(call.slots.tolist(), call.buffers, strict=True):
        buffer[: len(buffer)] = bytes([slot]) * len(buffer)
    return Outcome(np.zeros(len(call.slots), np.uint8), sizes=call.slots.astype(np.uint64))


def test_hits_of_several_segments_come_in_the_order_of_the_keys() -> None:
    a, b = FakePort("a"), FakePort("b")
    context, keys = known(a, b, b, a)
    buffers = [bytearray(4) for _ in keys]
    reading = fetch(context, keys, buffers)
    effect = next(reading)
    assert isinstance(effect, CallAgents)
    assert [port.node for port, _ in effect.calls] == ["a", "b"]
    outcomes = [outcome(cast(ReadCall, call)) for _, call in effect.calls]
    with pytest.raises(StopIteration) as stop:
        reading.send(outcomes)
    assert stop.value.value == [Hit(0, "a"), Hit(1, "b"), Hit(2, "b"), Hit(3, "a")]
    assert [buffer[0] for buffer in buffers] == [0, 1, 2, 3]
    assert len(context.state.touches) == 4


def test_an_unknown_key_among_them_asks_the_master() -> None:
    context, keys = known(FakePort("a"))
    assert isinstance(next(fetch(context, [*keys, b"unknown"], None)), CallMaster)
    assert len(context.state.touches) == 0
