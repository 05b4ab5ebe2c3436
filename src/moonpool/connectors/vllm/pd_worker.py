"""The worker's side of hand-overs: carries plans out on the nodes of moonpool.transfer.handoff.

bind -> start_loads (announces) -> layer_done, layer by layer (pushes) -> results
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from moonpool.connectors.vllm.pd_metadata import HandoffPlan
from moonpool.transfer.handoff import DecodeNode, PrefillNode
from moonpool.transfer.handoff.node import sums_of

_QUIET_SLACK_S = 1.0


class Results(NamedTuple):
    """Requests whose blocks vLLM may free, those that may go on, and blocks that did not come."""

    sent: set[str]
    received: set[str]
    failed: set[str]
    bad_blocks: set[int]


class HandoffWorker:
    """One worker of the engine; called from its model runner only. `layers` are names in order;
    either node may be missing, as the role says."""

    def __init__(
        self, layers: list[str], prefill: PrefillNode | None, decode: DecodeNode | None
    ) -> None:
        self._index = {name: at for at, name in enumerate(layers)}
        self._prefill, self._decode = prefill, decode
        self._plan = HandoffPlan()
        self._released: set[str] = set()
        self._ended: dict[str, str] = {}
        self._blocks: dict[str, int] = {}
        self._lent: dict[str, tuple[str, list[int]]] = {}

    def bind(self, plan: HandoffPlan) -> None:
        """A step begins."""
        self._plan = plan
        node = self._prefill
        if node is None:
            return
        for opening in plan.opened:
            node.open(opening.transfer, opening.tokens, [], opening.prompt)
            self._blocks[opening.transfer] = 0
        for advance in plan.advanced:
            if len(advance.blocks) != self._blocks.get(advance.transfer):
                self._blocks[advance.transfer] = len(advance.blocks)
                node.extend(advance.transfer, np.array(advance.blocks, dtype=np.int64))
        for transfer, text in plan.failed:
            node.fail(transfer, "cancelled", text)
        for ending in plan.ended:
            self._ended[ending.transfer] = ending.request_id

    def before_reuse(self, plan: HandoffPlan) -> None:
        """vLLM is about to write other requests' tokens into blocks of preempted ones."""
        node = self._prefill
        if node is None or not plan.preempted:
            return
        for transfer in plan.preempted:
            node.fail(transfer, "cancelled", "the prefill worker ran out of blocks")
        give_up_s = time.monotonic() + node.times.push_s + _QUIET_SLACK_S
        waiting = set(plan.preempted)
        while waiting and time.monotonic() < give_up_s:
            self._take_released()
            waiting -= self._released
            if waiting:
                time.sleep(0.001)
        assert not waiting, f"pushes of {sorted(waiting)} outlived their deadline"

    def start_loads(self) -> None:
        """Tells prefill workers where blocks are wanted."""
        node, plan = self._decode, self._plan
        if node is None:
            return
        for target in plan.claims:
            node.claim(target.transfer, target.remote, target.engine)
        for told in plan.announced:
            target = told.target
            self._lent[target.transfer] = (told.request_id, told.blocks)
            node.announce(
                target.transfer,
                target.remote,
                told.first_token,
                told.tokens,
                told.blocks,
                target.engine,
                told.prompt,
            )
        for transfer, where in plan.cancelled:
            node.cancel(transfer, remote=where.remote if where is not None else None)
        self._plan = HandoffPlan(advanced=plan.advanced)

    def layer_done(self, name: str) -> None:
        """The step's tokens of this layer are in their blocks."""
        layer = self._index.get(name)
        if layer is not None and self._prefill is not None and self._plan.advanced:
            steps = [(advance.transfer, advance.upto) for advance in self._plan.advanced]
            self._prefill.computed(steps, layer)

    def results(self) -> Results:
        """What is over since the last call."""
        self._take_released()
        sent = set()
        for transfer in self._released & self._ended.keys():
            sent.add(self._ended.pop(transfer))
            self._released.discard(transfer)
            self._blocks.pop(transfer, None)
        received, failed, bad_blocks = set(), set(), set()
        for settled in self._decode.take() if self._decode is not None else ():
            lent = self._lent.pop(settled.transfer, None)
            if lent is None:
                continue  # a claim that came to nothing: the announcement will, too
            request_id, blocks = lent
            received.add(request_id)
            if not settled.ok:
                failed.add(request_id)
                bad_blocks.update(blocks)
        return Results(sent, received, failed, bad_blocks)

    def counts(self) -> dict[str, int]:
        """Sums since the start, of both nodes."""
        return sums_of(prefill=self._prefill, decode=self._decode)

    def close(self) -> None:
        for node in (self._decode, self._prefill):
            if node is not None:
                node.close()

    def _take_released(self) -> None:
        if self._prefill is not None:
            self._released.update(one.transfer for one in self._prefill.take())
