"""An engine without its thread, for tests that want each step in their hands."""

from __future__ import annotations

import random
import time
from pathlib import Path

from moonpool.core.engine_section import EngineConfig
from moonpool.engine.core import EngineCore
from moonpool.engine.model.assembly import assemble
from moonpool.engine.model.weights import load
from moonpool.engine.request import Request, Step
from moonpool.pool.pool import Pool

BLOCK, CHUNK = 16, 32
PAGE_BYTES = 3 * 2 * BLOCK * 2 * 32 * 2  # of the tiny model, in bfloat16


def config_of(pages: int = 200, **changes: object) -> EngineConfig:
    settings: dict[str, object] = {
        "block_size": BLOCK,
        "chunk_tokens": CHUNK,
        "kv_memory": pages * PAGE_BYTES,
        "threads": 1,
        **changes,
    }
    return EngineConfig(**settings)  # type: ignore[arg-type]


def core_of(
    folder: Path, pages: int = 200, pool: Pool | None = None, **changes: object
) -> EngineCore:
    return assemble(load(folder), config_of(pages, **changes), pool).core


def prompt_of(length: int, seed: int = 0) -> list[int]:
    random_ = random.Random(seed)
    return [random_.randrange(3, 259) for _ in range(length)]


def greedy(prompt: list[int], max_tokens: int = 8, **changes: object) -> Request:
    return Request(prompt=prompt, max_tokens=max_tokens, temperature=0.0, **changes)  # type: ignore[arg-type]


class Answers:
    """What a core told of each request so far."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.tokens: dict[int, list[int]] = {}
        self.last: dict[int, Step] = {}
        self.now = 0.0
        core.tell = self._tell

    def add(self, request: Request) -> int:
        number = self.core.add(request, self.now)
        self.tokens[number] = []
        return number

    def step(self) -> None:
        wait_s = self.core.step(self.now)
        self.core.cache.check()
        if wait_s:
            time.sleep(0.001)  # for the pool's threads

    def run(self) -> None:
        while not self.core.is_idle:
            self.step()

    def ask(self, request: Request) -> list[int]:
        number = self.add(request)
        self.run()
        return self.tokens[number]

    def _tell(self, number: int, step: Step) -> None:
        self.tokens[number] += step.tokens
        self.last[number] = step
