"""Random lives of a pool, a snapshot written in pieces between them, a crash: what is restored is
what a master without a snapshot is told, and what was removed stays removed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from moonpool.pool import messages as m
from moonpool.pool.columns import pack_keys
from moonpool.pool.messages import RemoveStatus as R
from moonpool.pool.snapshot.writer import frames
from tests.pool.master_world import MasterWorld, reserve_message
from tests.pool.snapshot.rig import contents, restart, sealed

STEPS = 60
KEYS = [b"key%d" % number for number in range(12)]


class Life:
    """A pool of two nodes, small enough to evict, and what its clients were told."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = MasterWorld()
        for _ in range(2):
            self.world.add_node(capacity=24 << 8)
        self.client = self.world.client()
        self.removed: set[bytes] = set()
        self.open: list[m.Commit] = []
        self.pieces: Iterator[bytes] = iter(())
        self.written: list[bytes] = []
        self.file: bytes | None = None

    def live(self) -> None:
        acts = [self.put, self.put, self.replace, self.begin, self.commit, self.remove, self.go]
        for _ in range(STEPS):
            self.random.choice([*acts, self.write, self.write, self.write, self.hear, self.hear])()

    def some(self) -> list[bytes]:
        return self.random.sample(KEYS, self.random.randint(1, 3))

    def put(self, replace: bool = False) -> None:
        self.begin(replace)
        self.commit(-1)

    def replace(self) -> None:
        self.put(replace=True)

    def begin(self, replace: bool = False) -> None:
        """Sealed, and committed later or never."""
        keys, copies = self.some(), self.random.randint(1, 2)
        ask = reserve_message(keys, 256, replicas=copies, replace=replace)
        reserved = self.world.call(self.client, ask, m.Reserved)
        self.open.append(self.world.seal(reserved, keys, 256))
        # What is sealed may be found committed after a crash, though its key was removed before.
        self.removed -= set(keys)

    def commit(self, which: int = 0) -> None:
        if self.open:
            call = self.open.pop(which)
            if call.row:
                self.world.ask(self.client, call)
                self.world.pass_time(0.2, 0.1)  # a replacement waits for agents

    def remove(self) -> None:
        if self.open:
            return  # it could be sealed again by whoever writes it
        keys = self.some()
        request = self.world.ask(self.client, m.Remove(pack_keys(keys), 100))
        self.world.pass_time(0.2, 0.1)
        for reply in self.world.replies[request]:
            assert isinstance(reply, m.Removed)
            gone = {k for k, s in zip(keys, reply.status, strict=True) if s == R.REMOVED}
            self.removed |= gone

    def go(self) -> None:
        """A node goes, or all that are away come back; orders to one that goes may be lost."""
        away = [node for node in self.world.nodes if not node.session]
        if away:
            for node in away:
                node.deaf = False
                self.world.join(node)
        elif self.random.random() < 0.5:
            node = self.random.choice(self.world.nodes)
            node.deaf = True
            self.remove()
            self.world.leave(node)
            node.deaf = False

    def hear(self) -> None:
        self.world.pass_time(self.random.choice([0.6, 1.2, 4.0]))

    def write(self) -> None:
        """The next piece of the snapshot."""
        piece = next(self.pieces, None)
        if piece is not None:
            self.written.append(piece)
            return
        if self.written:
            self.file = b"".join(self.written)
        master = self.world.master
        self.pieces = frames(master.catalog, master.nodes.links, self.world.wall_ms, 8)
        self.written = []

    def crash(self) -> None:
        for node in self.world.nodes:
            node.deaf = False
        self.client = restart(self.world, self.file)


@pytest.mark.parametrize("seed", range(60))
def test_restored_is_what_would_have_been_told(seed: int) -> None:
    life = Life(seed)
    life.live()
    life.crash()
    restored = contents(life.world)
    assert not life.removed & set(restored), f"seed {seed}"
    assert sealed(life.world.nodes) == sum(len(one[2]) for one in restored.values()), seed
    restart(life.world, None)
    assert contents(life.world) == restored, f"seed {seed}"
