"""Puts over mapped memory that end badly: no slot waits for a writer who has given it up."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from moonpool._core import SegmentAgent, SegmentClient
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
