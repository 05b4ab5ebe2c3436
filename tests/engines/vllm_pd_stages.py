"""Where in a hand-over the prefill engine is to be held: it stops itself there, once, as a whole
process, and whoever tests kills it, wakes it, or aborts the request meanwhile."""

from __future__ import annotations

import os
import signal
from typing import Any

STAGES = ("opened", "first layer", "first chunk", "last layer", "ended")
"""The worker knows of the request; a layer's push is under way; all layers of a part of the prompt;
all of the prompt; vLLM is through with the request and keeps its blocks for us."""


class _Stage:
    def __init__(self, worker: Any, stage: str) -> None:
        self._worker, self._stage = worker, stage
        self._bind, self._layer_done = worker.bind, worker.layer_done
        self._layers = 0
        self._left: dict[str, int] = {}  # tokens of the prompts
        worker.bind, worker.layer_done = self.bind, self.layer_done

    def bind(self, plan: Any) -> None:
        self._bind(plan)
        self._layers = 0
        self._plan = plan
        for opening in plan.opened:
            self._left[opening.transfer] = opening.tokens
        if plan.opened:
            self._reach("opened")
        if plan.ended:
            self._reach("ended")

    def layer_done(self, name: str) -> None:
        self._layer_done(name)
        self._layers += 1
        if not self._plan.advanced:
            return
        if self._layers == 1:
            self._reach("first layer")
        if self._layers == len(self._worker._index):
            whole = all(step.upto >= self._left[step.transfer] for step in self._plan.advanced)
            self._reach("last layer" if whole else "first chunk")

    def _reach(self, stage: str) -> None:
        if stage == self._stage:
            self._worker.bind, self._worker.layer_done = self._bind, self._layer_done
            os.kill(os.getpid(), signal.SIGSTOP)


def freeze_at(worker: Any, stage: str) -> None:
    """Of the next hand-over."""
    assert stage in STAGES
    _Stage(worker, stage)
