"""Puts over mapped memory that end badly: no slot waits for a writer who has given it up."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from moonpool._core import SegmentAgent, SegmentClient
from moonpool.core.clock import ManualClock
from moonpool.pool.agent_control import AgentControl
from moonpool.pool.port_shm import ShmPort
from moonpool.pool.ports import U32, U64, ClaimCall, Finisher, PutCall, Status, failed
from tests.transfer.shared_segment import records

TERM, SEQUENCE = 3, 7


class CutOff(AgentControl):
    """Grants a claim, has its reservation expire, and hears nothing after that."""

    def __init__(self, agent: SegmentAgent) -> None:
        super().__init__(agent)
        self.agent = agent

    def claim(
        self, call: ClaimCall | PutCall, row: int, row_epoch: int, timeout_s: float
    ) -> Finisher:
        granted = super().claim(call, row, row_epoch, timeout_s)
        self.agent.expire(np.array([TERM], np.uint64), np.array([SEQUENCE], np.uint64))
        return granted

    def abort(self, slots: U32, generations: U64, timeout_s: float) -> Finisher:
        return lambda: failed(len(slots), Status.UNREACHABLE)


def test_a_claim_that_expired_and_whose_abort_nobody_heard_is_disowned(tmp_path: Path) -> None:
    path = str(tmp_path / "segment")
    agent = SegmentAgent.create(path, 1 << 20, 1 << 20, 16, populate=False)
    agent.raise_term(TERM, bytes(16))
    port = ShmPort(SegmentClient(path), CutOff(agent), "node", "shm")
    claims = records([100], [b"key"], term=TERM, seq=SEQUENCE)
    outcome = port.start(PutCall(claims, b"key", TERM, [bytes(100)], 100), 1.0)()
    assert outcome.status.tolist() == [Status.MOVED]
    assert agent.usage()["retired"] == 1, "it waited for its writer"
    agent.drain()
    assert agent.usage()["retired"] == 0
    port.close()
    agent.close()


class Silent(AgentControl):
    """Grants a claim, and is stopped before the seal: each call waits as long as it may."""

    def __init__(self, agent: SegmentAgent, clock: ManualClock) -> None:
        super().__init__(agent)
        self.clock = clock

    def _wait(self, count: int, timeout_s: float) -> Finisher:
        self.clock.advance(timeout_s)
        return lambda: failed(count, Status.CANCELLED)

    def seal(
        self, slots: U32, generations: U64, crcs: U32, term: int, timeout_s: float
    ) -> Finisher:
        return self._wait(len(slots), timeout_s)

    def abort(self, slots: U32, generations: U64, timeout_s: float) -> Finisher:
        return self._wait(len(slots), timeout_s)


def test_an_agent_that_stops_between_two_steps_gets_one_deadline_for_all(tmp_path: Path) -> None:
    path, clock = str(tmp_path / "segment"), ManualClock(start_s=1.0)
    agent = SegmentAgent.create(path, 1 << 20, 1 << 20, 16, populate=False)
    agent.raise_term(TERM, bytes(16))
    port = ShmPort(SegmentClient(path), Silent(agent, clock), "node", "shm", clock)
    claims = records([100], [b"key"], term=TERM, seq=SEQUENCE)
    outcome = port.start(PutCall(claims, b"key", TERM, [bytes(100)], 100), 5.0)()
    assert outcome.status.tolist() == [Status.CANCELLED]
    assert clock.monotonic() == 6.0
    port.close()
    agent.close()
