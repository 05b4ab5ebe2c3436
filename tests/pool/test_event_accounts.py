"""P10: who follows the numbered events knows what there is, whatever it came and went by."""

from __future__ import annotations

import random

import msgspec
import numpy as np

from moonpool.pool import messages as m
from moonpool.pool.columns import pack_keys
from tests.pool.master_world import CONFIG, Node
from tests.pool.tenancy.world import TenantWorld, tenant

SIZES = [64, 1024, 5000]
MEMORY, DISK = 1 << 15, 1 << 16
CONFIGURED = msgspec.structs.replace(
    CONFIG,
    slow_start_s=0.0,
    repair_delay_s=2.0,
    forget_after_s=20,
    offload="write",
    events_max=100_000,
    promote_window_s=60.0,
)
CAUSES = {"put", "replace", "remove", "evict", "expire", "lose", "offload", "demote", "promote"}
CAUSES |= {"forget", "node_lost", "node_back", "tier_lost", "tier_back"}


class Follower:
    """Reads on from where it is; begins anew with another master only."""

    def __init__(self, world: TenantWorld) -> None:
        self.world = world
        self.known: set[bytes] = set()
        self.kinds: dict[str, int] = {}
        self.term = 0

    def read(self) -> None:
        log = self.world.master.catalog.events
        if log.term != self.term:
            self.term, self.position, self.known = log.term, log.next_sequence, self.there()
        events, rebase = log.read(log.term, self.position, 100_000)
        assert not rebase
        for event in events:
            assert event.sequence == self.position
            self.position += 1
            self.kinds[event.kind] = self.kinds.get(event.kind, 0) + 1
            if event.kind == "put":
                assert event.key not in self.known, event
                self.known.add(event.key)
            elif event.key:
                assert event.key in self.known, event
            if event.gone:
                self.known.remove(event.key)

    def there(self) -> set[bytes]:
        catalog = self.world.master.catalog
        rows, _ = catalog.scan(0, 4096, b"")
        return {catalog.table.key(int(row)) for row in rows}


class Life:
    """Two nodes, one with a disk; a tenant that may not borrow, and one that may."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.world = TenantWorld(
            tenant("a", quota_bytes=MEMORY // 2, borrow=False),
            tenant("b", quota_bytes=MEMORY // 2),
            config=CONFIGURED,
        )
        self.nodes: list[Node] = [self.world.add_node(f"n{i}", MEMORY) for i in range(2)]
        self.nodes.append(self.world.add_node("n0", DISK, medium="disk"))
        self.sessions = [self.world.visitor(name) for name in ("a", "b", "")]
        self.follower = Follower(self.world)
        self._by_quota = 0

    def by_quota(self) -> int:
        """Objects of the tenant that has an end: it makes room for itself."""
        return self._by_quota + int(self.world.held("a")["evicted_objects"])

    def step(self) -> None:
        draw, world = self.draw, self.world
        session = draw.choice(self.sessions)
        keys = draw.sample([b"k%d" % i for i in range(30)], draw.randint(1, 3))
        what = draw.random()
        if what < 0.45:
            how = {"replace": draw.random() < 0.3, "replicas": draw.choice([1, 1, 2])}
            how["expiry_ms"] = world.wall_ms + 3000 if draw.random() < 0.1 else 0
            how["chain"] = draw.random() < 0.3
            self.put(session, keys, draw.choice(SIZES), **how)
        elif what < 0.53:
            world.ask(session, m.Remove(pack_keys(keys)))
        elif what < 0.75:
            self.read(session, keys[0])
            if draw.random() < 0.1:
                self.report(session, keys[0])
        elif what < 0.8:
            self.leave_or_join(draw.choice(self.nodes))
        elif what < 0.81:
            self.another_master()
        else:
            world.pass_time(draw.choice([0.2, 0.2, 4.0, 30.0]), 0.1)

    def put(self, session: int, keys: list[bytes], size: int, **how: object) -> None:
        """Answered at once, or when a node that is away has been waited for."""
        world = self.world
        world._writer = world._names[session]
        commit = world.seal(world.reserve(session, keys, size, **how), keys, size)
        world.ask(session, commit)

    def read(self, session: int, key: bytes) -> None:
        """Twice: what lies below memory only comes back."""
        found = self.world.call(session, m.Lookup(pack_keys([key])), m.Found)
        if found.status == bytes([m.LookupStatus.FOUND]):
            touches = m.Touches(found.row * 2, found.sequence * 2)
            self.world.call(session, m.Touch(touches), m.Done)

    def report(self, session: int, key: bytes) -> None:
        """A reader found the bytes of its first copy changed."""
        found = self.world.call(session, m.Lookup(pack_keys([key])), m.Found)
        copies = found.replicas
        if copies.segment:
            first = (copies.segment[:2], copies.slot[:4], copies.generation[:8])
            self.world.call(session, m.Report(found.row, found.sequence, *first), m.Done)

    def another_master(self) -> None:
        """Who knows nothing until nodes join again; one of them does so at once."""
        self._by_quota = self.by_quota()
        term = self.world.master.catalog.term
        self.world.start(term, first_term=term + 10)
        self.sessions = [self.world.visitor(name) for name in ("a", "b", "")]
        self.follower.read()
        self.world.join(self.draw.choice(self.nodes))

    def leave_or_join(self, node: Node) -> None:
        if node.session:
            self.world.leave(node)
        else:
            self.world.join(node)


def test_who_follows_knows_what_there_is() -> None:
    kinds: set[str] = set()
    by_quota = 0
    for seed in np.random.default_rng().integers(1 << 30, size=3).tolist():
        print(f"seed {seed}")
        life = Life(random.Random(seed))
        for _ in range(400):
            life.step()
            life.follower.read()
            assert life.follower.known == life.follower.there()
        kinds |= life.follower.kinds.keys()
        by_quota += life.by_quota()
    assert kinds == CAUSES and by_quota
