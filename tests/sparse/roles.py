"""What the processes of test_processes.py do: `python -m tests.sparse.roles ROLE ARGS...`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np

from moonpool.core.errors import PoolFull, PrefixGone
from moonpool.sparse import HotBuffer, SparsePool
from moonpool.sparse.layout import U8
from moonpool.sparse.tables import U64, Stores
from tests.sparse.stamped import SMALL, rows_of, write

LEASE_S = 0.5  # of the readers that are killed


class Dying(Stores):
    """Kills its process before the table change of this number."""

    def __init__(self, after: int) -> None:
        self.left = after

    def words(self, memory: U8, offsets: U64, values: U64) -> None:
        for i in range(len(offsets)):  # each word is a step of its own
            self._step()
            super().words(memory, offsets[i : i + 1], values[i : i + 1])

    def column(self, column: Any, at: Any, value: Any) -> None:
        self._step()
        super().column(column, at, value)

    def _step(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


def each_step(path: str, role: str) -> None:
    """For each number on its input: a child that plays `role` and dies before that change. Answers
    with the child's exit status, 0 when there was no such change any more."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            {"writing": die_writing, "reading": die_reading}[role](path, int(line))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def die_writing(path: str, after: int) -> None:
    """Claims, writes, commits, extends its length, seals, removes; killed on the way. The key that
    was there is removed for it."""
    pool = SparsePool.open(path, stores=Dying(after))
    with pool.writer("new", 200) as writer:
        for layer in range(SMALL.layers):
            writer.put(layer, 0, rows_of(SMALL, 7, layer, range(200)))
        writer.commit(100)
        writer.commit(150)
        writer.seal(190)
    pool.remove("old")


def die_reading(path: str, after: int) -> None:
    pool = SparsePool.open(path, stores=Dying(after), writable=False, lease_s=LEASE_S)
    reader = pool.reader("old")
    out = np.empty((10, 656), np.uint8)
    reader.gather(0, range(10), out)
    reader.close()


def churn(path: str, owner: str) -> None:
    """Writes and removes prefixes under one key for as long as it lives; each has its own stamp."""
    pool = SparsePool.open(path, lease_s=0.0)
    number = int(owner)
    print("ready", flush=True)
    while True:
        number += 1
        try:
            pool.remove(f"churn{number % 3}")
            write(pool, f"churn{number % 3}", number, 512)  # room for two: the oldest goes
        except PoolFull:
            pool.reap()


def read(path: str, goods: str) -> None:
    """Gathers while pages are reused: each gather is one owner's rows, or PrefixGone. Prints how
    often it was what."""
    pool = SparsePool.open(path, lease_s=0.0, writable=False)
    good = gone = 0
    random = np.random.default_rng(1)
    out = np.empty((3 * 256, 656), np.uint8)
    while good < int(goods) or gone < 3:
        try:
            reader = pool.reader(f"churn{random.integers(3)}")
        except PrefixGone:
            continue
        with reader:
            hot = HotBuffer(SMALL, 256, second_rows=64)
            try:
                for _ in range(20):
                    positions = random.permutation(reader.length)[:256]
                    wanted = np.concatenate([positions] * 3)
                    counts = [len(positions)] * 3
                    reader.gather_layers([0, 1, 2], counts, wanted, out[: len(wanted)])
                    check_one_owner(out[: len(wanted)], wanted, len(positions))
                    found = hot.resolve(reader, 1, positions)
                    check_same_owner(hot.rows[1][found.slots], out[len(positions) :], positions)
                    good += 1
            except PrefixGone:
                gone += 1
    print(f"good {good} gone {gone}", flush=True)


def owner_of(row: U8, layer: int, token: int) -> int:
    """The owner whose stamp the row's first word is, found by its inverse."""
    inverse = pow(0x94D049BB133111EB, -1, 1 << 64)
    word = int(row[:8].view(np.uint64)[0]) * inverse % (1 << 64)
    mixed = token * 0x9E3779B97F4A7C15 * 0xBF58476D1CE4E5B9 % (1 << 64)
    seed = word ^ mixed
    number, rest = divmod((seed - 1) // 2, 1_000_003)
    assert rest == layer, f"row of token {token} in layer {layer} is torn or another's"
    return number


def check_one_owner(out: U8, positions: Any, per_layer: int) -> None:
    owner = owner_of(out[0], 0, int(positions[0]))
    for layer in range(3):
        part = slice(layer * per_layer, (layer + 1) * per_layer)
        expected = rows_of(SMALL, owner, layer, positions[part])
        assert np.array_equal(out[part], expected), f"torn rows in layer {layer}"


def check_same_owner(rows: U8, out: U8, positions: Any) -> None:
    owner = owner_of(out[0], 1, int(positions[0]))
    assert np.array_equal(rows, rows_of(SMALL, owner, 1, positions)), "torn rows in the hot buffer"


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    {"each-step": each_step, "churn": churn, "read": read}[role](*arguments)
