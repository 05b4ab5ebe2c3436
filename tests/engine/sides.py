"""Engines beside each other over a pool, each step in the test's hands; what they answered, to
the bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import moonpool
from moonpool.core.sections import NodeConfig
from moonpool.engine.core import EngineCore
from moonpool.engine.model.attention.base import Span
from moonpool.engine.model.runner import Runner
from moonpool.engine.passes import Watch
from moonpool.engine.request import Reuse
from tests.engine.steps import Answers, core_of, greedy


class Recorder(Runner):
    """The same runner; it keeps the logits it gave."""

    def __init__(self, inner: Runner) -> None:
        self.__dict__ = inner.__dict__
        self.seen: list[Tensor] = []

    def prefill(
        self, tokens: Sequence[int], span: Span, watch: Watch | None, *, last: bool
    ) -> Tensor | None:
        logits = super().prefill(tokens, span, watch, last=last)
        if logits is not None:
            self.seen.append(logits.clone())
        return logits

    def decode(self, tokens: Sequence[int], spans: Sequence[Span]) -> Tensor:
        logits = super().decode(tokens, spans)
        self.seen.append(logits.clone())
        return logits


class Side:
    """An engine of its own on a pool, or on none."""

    def __init__(
        self, folder: Path, pool: moonpool.Pool | None = None, pages: int = 200, **changes: object
    ) -> None:
        self.core: EngineCore = core_of(folder, pages, pool, **changes)
        self.answers = Answers(self.core)

    def ask(self, prompt: list[int], **changes: object) -> tuple[list[int], list[Tensor], Reuse]:
        recorder = Recorder(self.core.runner)
        self.core.runner = recorder
        number = self.answers.add(greedy(prompt, 4, **changes))
        self.answers.run()
        return self.answers.tokens[number], recorder.seen, self.answers.last[number].reuse

    def figure(self, name: str) -> float:
        return self.core.figures()[name]

    def settle(self) -> None:
        """What is to be stored is stored."""
        link = self.core.link
        assert link is not None
        link.drain()
        self.answers.step()

    def close(self) -> None:
        if self.core.link is not None:
            self.core.link.close()
        self.answers.step()
        self.core.runner.close()


def node_of(folder: Path) -> NodeConfig:
    return NodeConfig(name="n0", memory=32 << 20, dir=str(folder), persist=False)


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


def looked_up(side: Side, prompt: list[int]) -> int:
    """A request whose blocks the pool has promised, before the engine has heard of it."""
    number = side.answers.add(greedy(prompt, 4))
    assert side.core.link is not None
    side.core.link.drain()
    return number
