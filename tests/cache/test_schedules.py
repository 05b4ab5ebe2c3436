"""Random schedules of a whole manager from a seed: requests that share prefixes arrive, prefill in
chunks, decode, are preempted and aborted; `check()` after every step, contents compared always.

Replays one seed: pytest tests/cache/test_schedules.py -k one_seed --seed N
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from moonpool.cache import CacheManager, Namespace, PageAllocator, Sequence
from moonpool.core.errors import OutOfPages
from moonpool.pool.eviction import POLICIES

STEPS, STEPS_SOAK = 1200, 100_000
PAGES = 48


class Engine:
    """Computes nothing: it writes each token's name into its slot, and reads it back."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.page_size = self.random.choice([1, 2, 4, 7])
        reserve = self.random.choice([1.0, 1.0, 0.3, 0.0])
        self.manager = CacheManager(
            PageAllocator(PAGES),
            self.page_size,
            policy=self.random.choice(sorted(POLICIES)),
            reserve_fraction=reserve,
            events_max=200,
        )
        self.sure = reserve == 1.0
        self.slots = np.full(PAGES * self.page_size, -1, np.int64)
        self.waiting: list[Sequence] = []
        self.roots = [self.tokens(20) for _ in range(3)]
        self.followed: set[int] = set()

    def tokens(self, most: int) -> list[int]:
        return [self.random.randrange(5) for _ in range(self.random.randint(1, most))]

    def step(self) -> None:
        running = self.manager.running
        action = self.random.random()
        if action < 0.15 and len(self.waiting) < 6:
            self.arrive()
        elif action < 0.3 and self.waiting:
            self.admit()
        elif action < 0.9 and running:
            self.compute(self.random.choice(running))
        elif action < 0.93 and running:
            sequence = self.random.choice(running)
            self.manager.preempt(sequence)
            self.waiting.append(sequence)
        elif action < 0.98 and running:
            self.manager.finish(self.random.choice(running))
        elif action > 0.998:
            self.manager.clear()
        self.manager.check()
        self.check_contents()

    def arrive(self) -> None:
        shared = self.random.choice(self.roots)[: self.random.randint(0, 20)]
        prompt = shared + self.tokens(10)
        namespace = Namespace(salt=self.random.choice([None, None, "a"]))
        room = PAGES * self.page_size - len(prompt)
        longest = len(prompt) + self.random.randint(0, min(12, room))
        self.waiting.append(self.manager.sequence(prompt, longest, namespace))

    def admit(self) -> None:
        sequence = self.waiting[0]
        asked = self.manager.can_admit(sequence)
        assert self.manager.admit(sequence) == asked
        if asked:
            self.waiting.pop(0)
            assert sequence.cached_tokens < len(sequence)

    def compute(self, sequence: Sequence) -> None:
        chunk = self.random.randint(1, 9)
        end = min(sequence.computed_tokens + chunk, len(sequence))
        possible = self.manager.can_grow(sequence, end)
        try:
            self.manager.grow(sequence, end)
        except OutOfPages:
            assert not self.sure, "a sequence with its whole reserve found no page"
            assert not possible
            self.manager.preempt(sequence)
            self.waiting.append(sequence)
            return
        assert possible
        for at in range(sequence.computed_tokens, end):
            self.slots[self.slot(sequence, at)] = self.name(sequence, at)
        self.manager.commit(sequence, end)
        if end == len(sequence):
            if end < sequence.tokens_max and self.random.random() < 0.9:
                sequence.append(self.random.randrange(5))
            else:
                self.manager.finish(sequence)

    def slot(self, sequence: Sequence, at: int) -> int:
        page = int(sequence.table[at // self.page_size])
        return page * self.page_size + at % self.page_size

    def name(self, sequence: Sequence, at: int) -> int:
        """What a token's keys and values depend on: all tokens up to it, and the namespace."""
        return hash((sequence.namespace.encoded, bytes(sequence.tokens[: at + 1])))

    def check_contents(self) -> None:
        for sequence in self.manager.running:
            at = self.random.randrange(len(sequence))
            if at < sequence.computed_tokens:
                assert self.slots[self.slot(sequence, at)] == self.name(sequence, at)
        if self.random.random() < 0.05:
            self.follow()

    def follow(self) -> None:
        for event in self.manager.take_events():
            name = type(event).__name__
            if name == "AllBlocksCleared":
                self.followed = set()
            elif name == "BlockStored":
                self.followed |= set(event.block_hashes)  # type: ignore[union-attr]
            else:
                self.followed -= set(event.block_hashes)  # type: ignore[union-attr]
        assert len(self.followed) == self.manager.tree.cached_pages

    def drain(self) -> None:
        for sequence in self.manager.running:
            self.manager.finish(sequence)
        self.manager.check()
        assert self.manager.available_pages == PAGES
        self.manager.clear()
        assert self.manager.allocator.free_pages == PAGES


def run(seed: int, steps: int) -> None:
    engine = Engine(seed)
    for step in range(steps):
        try:
            engine.step()
        except Exception as error:
            raise AssertionError(f"seed {seed}, step {step}: --seed {seed} replays it") from error
    engine.drain()
    assert engine.manager.counts.hit_tokens > 0


@pytest.mark.soak
def test_random_schedules(request: pytest.FixtureRequest) -> None:
    seeds = request.config.getoption("--seeds")
    steps = STEPS_SOAK if seeds > 300 else STEPS
    for seed in range(max(seeds // 500, 6)):
        run(seed, steps)


def test_one_seed(request: pytest.FixtureRequest) -> None:
    run(request.config.getoption("--seed"), 4 * STEPS)
