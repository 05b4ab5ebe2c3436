"""A master's part in an election, over a real etcd: until when it may be sure that it leads."""

from __future__ import annotations

import asyncio
import math

import pytest

from moonpool.core.clock import ManualClock
from moonpool.core.errors import Unreachable
from moonpool.core.sections import MasterConfig
from moonpool.pool.ha_campaign import Campaign
from moonpool.pool.ha_election import SURE, Patience
from moonpool.pool.ha_registry import Registry
from moonpool.pool.master import MasterServer
from moonpool.pool.master_machine import MasterMachine

LEASE_S = 1.0


class Master:
    """What a campaign tells, kept; `etcd` is looked at when the certainty ends."""

    instance_text = "aa"

    def __init__(self, etcd: str) -> None:
        self.sure_until: list[float] = []
        self.resigned_before: list[bool] = []
        self._etcd = etcd

    def leads_until(self, moment: float) -> None:
        self.sure_until.append(moment)
        if moment == -math.inf:
            registry = Registry(self._etcd)
            self.resigned_before.append(registry.read().beat.resigned)
            registry.close()

    def lead(self, term: int, nodes: set[str] | None) -> None:
        pass

    def raise_term(self, term: int) -> None:
        pass

    def stand_by(self) -> None:
        pass

    def leader_is(self, address: str) -> None:
        pass

    def known_nodes(self) -> list[str]:
        return ["n0"]

    def term_wanted(self) -> int:
        return 0


def test_who_resigns_is_not_sure_any_more_before_others_can_know(etcd: str) -> None:
    async def main() -> Master:
        master = Master(etcd)
        campaign = Campaign(master, etcd, "a:1", LEASE_S, ManualClock())
        await campaign._look(Patience(LEASE_S))
        assert campaign.leading
        await campaign.close()
        return master

    master = asyncio.run(main())
    assert master.sure_until == [SURE * LEASE_S, -math.inf]
    assert master.resigned_before == [False]
    registry = Registry(etcd)
    assert registry.read().beat.resigned
    registry.close()


def test_a_claim_whose_answer_was_lost_counts_from_the_claim(
    etcd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait a lease from when it came to etcd; finding it by a read renews nothing."""

    async def main() -> Master:
        master, clock = Master(etcd), ManualClock()
        campaign = Campaign(master, etcd, "a:1", LEASE_S, clock)
        claim = campaign._registry.claim

        def lost(*args: object) -> int:
            claim(*args)  # type: ignore[arg-type]
            raise Unreachable("the answer got lost")

        monkeypatch.setattr(campaign._registry, "claim", lost)
        with pytest.raises(Unreachable):
            await campaign._look(Patience(LEASE_S))
        clock.advance(0.7)
        await campaign._look(Patience(LEASE_S))
        assert campaign.leading
        await campaign.close()
        return master

    assert asyncio.run(main()).sure_until[0] == SURE * LEASE_S


async def test_a_campaign_that_breaks_ends_its_master(
    etcd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not renew its lead, nor take it again, and nobody would hear why."""

    def broken(*_: object) -> None:
        raise ValueError("leading went wrong")

    server = MasterServer(MasterConfig(port=0, ha=etcd))
    monkeypatch.setattr(MasterMachine, "lead", broken)
    await server.start()
    with pytest.raises(ValueError, match="leading went wrong"):
        await asyncio.wait_for(server.run(), 60)


async def test_who_cannot_be_enlisted_ends_too(etcd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no entry")

    campaign = Campaign(Master(etcd), etcd, "a:1", LEASE_S, ManualClock())
    monkeypatch.setattr(campaign._roster, "enlist", broken)
    with pytest.raises(ValueError, match="no entry"):
        await asyncio.wait_for(campaign.run(), 60)
    await campaign.close()
