"""After the storm: what was acknowledged is there, what is there is accounted for."""

from __future__ import annotations

from typing import Any

from moonpool.pool import operations
from moonpool.pool.messages import MEMORY
from moonpool.pool.results import Hit
from tests.sim.pool import SimPool
from tests.sim.work import CHAINS, DEPTH, all_keys


class Accounts:
    """Read in the quiet; problems go to the history."""

    def __init__(self, pool: SimPool) -> None:
        self.pool = pool
        self.world = pool.world
        self.history = pool.history

    def check(self) -> None:
        """What was acknowledged is there, and nothing leaked."""
        self._read_back()
        for node in self.pool.nodes:
            usage = node.agent.usage()
            for what in ("writing", "retired", "pins"):
                if usage[what]:
                    self.history.problems.append(
                        f"P2: {node.name} still has {usage[what]} {what} in the quiet: {usage}"
                    )
        for tier in self.pool.tiers:
            writing = tier.agent.usage()["writing"]
            if writing != tier.queued:  # a full one is tried again and again
                self.history.problems.append(f"P2: {tier.name} holds {writing} for nobody")
        self._compare_catalog()

    def _read_back(self) -> None:
        client = self.pool.clients[0]
        keys = all_keys()
        begin = self.world.now
        answers: list[Any] = []
        client.run(
            lambda context: operations.get_many(context, keys, None, True), 5.0, answers.extend
        )
        self.world.run(self.world.now + 6.0)
        if len(answers) != len(keys):
            self.history.problems.append("P11: the last read was never answered")
            return
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, Hit):
                assert answer.data is not None
                self.history.hit(key, answer.data, begin, self.world.now)
                continue
            put = self.history.must_be_there(key)
            if put is not None and not self.pool.shape.tight:
                self.history.problems.append(
                    f"P7: put {put.number} of {key!r} was acknowledged at {put.end:.4f} and is "
                    f"gone: {answer}"
                )
        self._check_chains(dict(zip(keys, answers, strict=True)))

    def _check_chains(self, answers: dict[bytes, Any]) -> None:
        """P9: what is there of a chain is a contiguous prefix (its members are never removed).
        Copies on a node that was away at an eviction from another segment may come back without
        their parent: orphans, which are no part of a prefix and the first to go."""
        several = len(self.pool.nodes) + len(self.pool.tiers) > 1
        if self.pool.shape.tight and several and self.history.outages.away:
            return
        for chain in range(CHAINS):
            there = [
                isinstance(answers[f"c{chain}/{depth}".encode()], Hit) for depth in range(DEPTH)
            ]
            if any(later and not earlier for earlier, later in zip(there, there[1:], strict=False)):
                self.history.problems.append(f"P9: chain {chain} has a hole: {there}")

    def _compare_catalog(self) -> None:
        """Each segment has as many sealed slots as the catalog has replicas there."""
        client = self.pool.clients[0]
        stats: list[dict[str, Any]] = []
        client.run(operations.stat, 2.0, stats.append)
        self.world.run(self.world.now + 2.5)
        if not stats:
            self.history.problems.append("P11: the last stat was never answered")
            return
        sealed = {(one.name, MEMORY): one.agent.usage()["sealed"] for one in self.pool.nodes}
        sealed |= {(one.node, "disk"): one.agent.usage()["sealed"] for one in self.pool.tiers}
        # A disk that was lost is waited for: what lay on it is of no segment that is there.
        alive = [one for one in stats[0]["segments"].values() if one["alive"]]
        held = {(one["node"], one["medium"]): one["objects"] for one in alive}
        for name in sealed.keys() | held.keys():
            if sealed.get(name, 0) != held.get(name, 0):
                self.history.problems.append(
                    f"P2: {' '.join(name)} holds {sealed.get(name, 0)} sealed objects, the catalog "
                    f"{held.get(name, 0)} replicas there"
                )
