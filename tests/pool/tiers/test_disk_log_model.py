"""The disk log against a dictionary, through restarts, kills, cut indexes and flipped bits."""

import os
import random
import shutil
from pathlib import Path

import pytest

from moonpool.pool.tiers.base import Entry, Status
from moonpool.pool.tiers.disk_log import DiskLog
from tests.pool.tiers.disk_rig import as_killed, flip, got, made, opened

SEEDS = range(12)
STEPS = 150


class World:
    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.home = path
        self.lives = 0
        self.path = path / "0"
        self.log: DiskLog = opened(self.path)
        self.there: dict[int, tuple[Entry, bytes]] = {}
        self.generation = 0

    def step(self) -> None:
        act = self.random.choices(
            [self.write, self.erase, self.read, self.reopen, self.kill], [50, 30, 30, 2, 3]
        )[0]
        act()

    def write(self) -> None:
        slot = self.random.randrange(40)
        if slot in self.there:
            self.log.erase(slot, self.there.pop(slot)[0].generation)
        self.generation += 1
        entry, data = made(slot, self.generation, self.random.randrange(60_000))
        if self.log.write(entry, data) is Status.OK:
            self.there[slot] = entry, data

    def erase(self) -> None:
        slot = self.random.randrange(40)
        entry, _ = self.there.pop(slot, (None, b""))
        generation = entry.generation if entry else self.random.randrange(1000)
        wanted = Status.OK if entry else Status.MOVED
        assert self.log.erase(slot, generation) is wanted

    def read(self) -> None:
        slot = self.random.randrange(40)
        if slot in self.there:
            entry, data = self.there[slot]
            assert got(self.log, slot, entry.generation) == data

    def reopen(self) -> None:
        self.log.close()
        self.log = opened(self.path)
        self.check()

    def kill(self) -> None:
        """The new life may have lost what was written last, if the index was torn; never more."""
        self.lives += 1
        path = as_killed(self.path, self.home / str(self.lives))
        self.log.close()
        shutil.rmtree(self.path)
        self.path = path
        torn = self.random.random() < 0.5
        if torn:
            size = (path / "index").stat().st_size
            os.truncate(path / "index", max(40, size - self.random.randrange(2000)))
        damaged = not torn and self.random.random() < 0.5
        if damaged:
            files = sorted(path.glob("*.bucket"))
            file = self.random.choice([path / "index", *files])
            flip(
                file, self.random.randrange(40, file.stat().st_size), 1 << self.random.randrange(8)
            )
        self.log = opened(path)
        left = {entry.slot: entry for entry in self.log.entries()}
        for slot, entry in left.items():
            assert self.there[slot][0] == entry, "something came back"
        for slot in [*self.there]:
            kept = slot in left
            if kept and damaged and got(self.log, slot, left[slot].generation) is Status.CORRUPT:
                kept = False
            if not kept:
                assert torn or damaged, "lost without a fault"
                del self.there[slot]
        self.check()

    def check(self) -> None:
        assert {one.slot: one for one in self.log.entries()} == {
            slot: entry for slot, (entry, _) in self.there.items()
        }
        for slot, (entry, data) in self.there.items():
            assert got(self.log, slot, entry.generation) == data


@pytest.mark.parametrize("seed", SEEDS)
def test_the_log_is_a_dictionary_that_survives(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    for _ in range(STEPS):
        world.step()
    world.check()
    world.log.close()
