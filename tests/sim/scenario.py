"""One seeded run: a pool, clients at work, faults, then quiet and the accounts."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moonpool.core.sections import MasterConfig
from moonpool.pool import operations
from moonpool.pool.client_state import Placement, Replica
from moonpool.pool.protocol_put import store
from moonpool.pool.protocol_reserve import NO_PARENT, PutItem, PutOptions
from moonpool.pool.results import Hit, Miss, PutResult, PutStatus, RemoveStatus
from tests.sim.actors import ClientActor, MasterActor, NodeActor, SimPort
from tests.sim.history import HEADER, History, stamp
from tests.sim.world import Process, World

WORK_S = 6.0
QUIET_S = 8.0
TIMEOUT_S = 1.5
CHAINS = 3
DEPTH = 5
REPORT_S = 1.5  # a returning node has rejoined and reported


@dataclass(frozen=True)
class Shape:
    """What kind of run it is; drawn from the seed."""

    nodes: int
    clients: int
    capacity: int
    tight: bool  # so small that puts evict
    faults: bool
    lose_node: bool = False


def shape_of(seed: int) -> Shape:
    rng = random.Random(seed ^ 0x5EED)
    tight = rng.random() < 0.4
    return Shape(
        nodes=rng.randint(1, 3),
        clients=rng.randint(2, 4),
        capacity=(24 << 10) if tight else (1 << 20),
        tight=tight,
        faults=rng.random() < 0.85,
    )


class Scenario:
    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        self.shape = shape or shape_of(seed)
        self.world = World(seed)
        self.random = random.Random(seed ^ 0xC11E)
        self.history = History()
        self.directory = Path(tempfile.mkdtemp(prefix="moonpool-sim-", dir="/dev/shm"))
        config = MasterConfig(
            node_lease_ms=800,
            clock_slack_ms=50,
            reservation_ms=1500,
            grace_ms=850,
            repair_delay_s=self.random.choice([0.2, 1.0, 30.0]),
            slow_start_s=self.random.choice([0.0, 2.0]),
        )
        self.master = MasterActor(self.world, config, snapshots=seed % 2 == 1)
        self.nodes: list[NodeActor] = []
        for i in range(self.shape.nodes):
            path = self.directory / f"node{i}.seg"
            host = "host-a" if i % 2 == 0 else "host-b"
            self.nodes.append(
                NodeActor(self.world, f"node{i}", self.master, path, self.shape.capacity, host)
            )
        by_incarnation = {node.incarnation: node for node in self.nodes}
        for node in self.nodes:
            node.peers = by_incarnation
        self.clients = [
            ClientActor(self.world, f"client{i}", self.master, by_incarnation, "host-a")
            for i in range(self.shape.clients)
        ]
        self.end = self.world.now + WORK_S

    @property
    def masters(self) -> Sequence[MasterActor]:
        return [self.master]

    def close(self) -> None:
        for client in self.clients:
            if client.alive:
                client.kill()
        for node in self.nodes:
            if node.alive:
                node.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- work -------------------------------------------------------------------------------------

    def keys(self) -> list[bytes]:
        return [f"c{c}/{d}".encode() for c in range(CHAINS) for d in range(DEPTH)] + [
            f"single{i}".encode() for i in range(4)
        ]

    def work(self, client: ClientActor) -> None:
        """The next thing this client does; it goes on until the working time is over."""
        if self.world.now >= self.end:
            return
        act = self.random.choices(
            [
                self._put_chain,
                self._put_single,
                self._get,
                self._match,
                self._remove,
                self._view,
                self._drain,
            ],
            [5, 4, 6, 3, 1, 2, 0.15],
        )[0]
        act(client)

    def _next(self, client: ClientActor) -> None:
        client.later(self.random.uniform(0.0, 0.02), lambda: self.work(client))

    def _size(self) -> int:
        return HEADER.size + self.random.choice([0, 5, 100, 700, 2000, 3000])

    def _put_chain(self, client: ClientActor) -> None:
        chain = self.random.randrange(CHAINS)
        length = self.random.randint(1, DEPTH)
        keys = [f"c{chain}/{d}".encode() for d in range(length)]
        parents: list[bytes | None] = [None, *keys[:-1]]
        self._put(client, keys, parents, PutOptions(self._replicas(), chain=True))

    def _put_single(self, client: ClientActor) -> None:
        key = f"single{self.random.randrange(4)}".encode()
        replace = self.random.random() < 0.5
        self._put(client, [key], [None], PutOptions(self._replicas(), replace=replace))

    def _replicas(self) -> int:
        return 2 if self.shape.nodes > 1 and self.random.random() < 0.3 else 1

    def _put(
        self,
        client: ClientActor,
        keys: list[bytes],
        parents: list[bytes | None],
        options: PutOptions,
    ) -> None:
        items, puts = [], []
        for i, (key, parent) in enumerate(zip(keys, parents, strict=True)):
            size = self._size()
            put = self.history.begin_put(key, size, self.world.now, parent, options.replace)
            item = PutItem(key, stamp(put.number, size), size)
            item.parent = i - 1 if parent is not None else NO_PARENT
            items.append(item)
            puts.append(put)

        def done(results: list[PutResult]) -> None:
            for put, result in zip(puts, results, strict=True):
                put.end = self.world.now
                put.outcome = _outcome(result)
            self._next(client)

        client.run(lambda context: store(context, items, options, wait_s=0.3), TIMEOUT_S, done)

    def _get(self, client: ClientActor) -> None:
        keys = self.random.sample(self.keys(), self.random.randint(1, 4))
        self._fetch(client, keys)

    def _fetch(self, client: ClientActor, keys: list[bytes]) -> None:
        begin = self.world.now

        def done(results: list[Any]) -> None:
            for key, result in zip(keys, results, strict=True):
                if isinstance(result, Hit):
                    assert result.data is not None
                    self.history.hit(key, result.data, begin, self.world.now)
                else:
                    self.history.misses += 1
            self._next(client)

        client.run(lambda context: operations.get_many(context, keys, None, True), TIMEOUT_S, done)

    def _match(self, client: ClientActor) -> None:
        chain = self.random.randrange(CHAINS)
        keys = [f"c{chain}/{d}".encode() for d in range(DEPTH)]

        def done(match: Any) -> None:
            if match.count:
                self._fetch(client, keys[: match.count])
            else:
                self._next(client)

        client.run(lambda context: operations.match_prefix(context, keys), TIMEOUT_S, done)

    def _remove(self, client: ClientActor) -> None:
        key = f"single{self.random.randrange(4)}".encode()
        removal = self.history.begin_removal(key, self.world.now)

        def done(statuses: list[RemoveStatus] | None) -> None:
            removal.end = self.world.now
            removal.acknowledged = statuses == [RemoveStatus.REMOVED]
            self._next(client)

        def attempt(context: Any) -> Any:
            try:
                return (yield from operations.remove(context, [key], TIMEOUT_S))
            except Exception:
                return None

        client.run(attempt, TIMEOUT_S, done)

    def _view(self, client: ClientActor) -> None:
        """P4: what a view shows stays as it is while the view is open, whatever happens to the
        object meanwhile. (P1 at its opening is checked as for a get.)"""
        key = self.random.choice(self.keys())
        begin = self.world.now

        def done(placement: Placement | Miss) -> None:
            if isinstance(placement, Placement):
                for replica in placement.replicas:
                    if self._open_view(client, key, replica, begin):
                        break
            self._next(client)

        client.run(lambda context: operations.place(context, key, False), TIMEOUT_S, done)

    def _open_view(self, client: ClientActor, key: bytes, replica: Replica, begin: float) -> bool:
        port = replica.port
        assert isinstance(port, SimPort)
        if port.segment is None or self.world.boottime_ns() >= port.actor.valid_until_ns:
            return False
        view = port.segment.pin(replica.slot, replica.generation)
        if isinstance(view, int):
            return False
        client.views.append(view)
        seen = bytes(memoryview(view))
        self.history.hit(key, seen, begin, self.world.now)

        def close() -> None:
            if bytes(memoryview(view)) != seen:
                self.history.problems.append(f"P4: a view of {key!r} changed while it was open")
            client.views.remove(view)
            view.release()

        client.later(self.random.choice([0.01, 0.2, 1.0]), close)
        return True

    def _drain(self, client: ClientActor) -> None:
        """A node is emptied for a while, under load."""
        name = self.random.choice(self.nodes).name

        def order(stop: bool) -> Any:
            def attempt(context: Any) -> Any:
                try:
                    return (yield from operations.drain(context, name, stop))
                except Exception:
                    return None

            return attempt

        def stop_later(left: int | None) -> None:
            client.later(
                self.random.choice([0.3, 1.0]),
                lambda: client.run(order(True), TIMEOUT_S, lambda _: self._next(client)),
            )

        client.run(order(False), TIMEOUT_S, stop_later)

    # --- faults -----------------------------------------------------------------------------------

    def schedule_faults(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            self.world.after(self.random.uniform(0.3, WORK_S), self._fault)

    def _fault(self) -> None:
        kind = self.random.choice(
            ["kill_master", "kill_node", "kill_client", "stop", "cut", "kill_both"]
        )
        pause = self.random.choice([0.05, 0.3, 1.0, 2.0])
        if kind == "kill_master":
            self._kill_master(pause)
        elif kind == "kill_node":
            self._kill_node(self.random.choice(self.nodes), pause)
        elif kind == "kill_both":
            self._kill_master(pause)
            self._kill_node(self.random.choice(self.nodes), self.random.uniform(0.05, 2.0))
        elif kind == "kill_client":
            client = self.random.choice(self.clients)
            client.kill()
            self.world.after(pause, lambda: self._revive(client))
        elif kind == "stop":
            process = self.random.choice([*self.masters, *self.nodes, *self.clients])
            process.stop()
            self._away(process, pause)
            self.world.after(pause, process.resume)
        else:
            connections = [c for one in self.masters for c in one.sessions.values()]
            if connections:
                connection = self.random.choice(connections)
                self.world.note(f"cut of {connection.ends[0].name} for {pause} s")
                connection.hold(pause)
                self._away(connection.ends[0], pause)
                if self.random.random() < 0.5:
                    self.world.after(pause / 2, connection.break_off)

    def _away(self, process: Process, pause: float) -> None:
        """From now on, and until its next report after the pause."""
        if isinstance(process, NodeActor):
            now = self.world.now
            self.history.outages.away.append((process.name, now, now + pause + REPORT_S))

    def _kill_master(self, pause: float) -> None:
        if self.master.alive:
            self.history.outages.master_deaths.append(self.world.now)
            self.master.kill()
            self.world.after(pause, self._restart_master)

    def _restart_master(self) -> None:
        if not self.master.alive:
            self.world.note("master restarted")
            self.master.start()

    def _kill_node(self, node: NodeActor, pause: float) -> None:
        if node.alive:
            node.kill()
            self._away(node, pause)
            self.world.after(pause, node.restart)

    def _revive(self, client: ClientActor) -> None:
        if not client.alive:
            client.restart()
            self.work(client)

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> list[str]:
        """The problems found; empty when every promise was kept."""
        for client in self.clients:
            client.later(0.3 + self.random.uniform(0, 0.1), lambda c=client: self.work(c))  # type: ignore[misc]
        if self.shape.faults:
            self.schedule_faults()
        self.world.run(self.end + 3.0)
        for process in [*self.masters, *self.nodes, *self.clients]:
            process.resume()
        self._restart_master()
        for node in self.nodes:
            node.restart()
        for client in self.clients:
            client.restart()
        self.world.run(self.world.now + QUIET_S)
        self._accounts()
        return self.history.problems

    def _accounts(self) -> None:
        """After the storm: what was acknowledged is there, and nothing leaked."""
        self._read_back()
        for node in self.nodes:
            usage = node.agent.usage()
            for what in ("writing", "retired", "pins"):
                if usage[what]:
                    self.history.problems.append(
                        f"P2: {node.name} still has {usage[what]} {what} in the quiet: {usage}"
                    )
        self._compare_catalog()

    def _read_back(self) -> None:
        client = self.clients[0]
        keys = self.keys()
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
            if put is not None and not self.shape.tight:
                self.history.problems.append(
                    f"P7: put {put.number} of {key!r} was acknowledged at {put.end:.4f} and is "
                    f"gone: {answer}"
                )
        self._check_chains(dict(zip(keys, answers, strict=True)))

    def _check_chains(self, answers: dict[bytes, Any]) -> None:
        """P9: what is there of a chain is a contiguous prefix (its members are never removed).
        Copies on a node that was away at an eviction may come back without their parent: orphans,
        which are no part of a prefix and the first to go."""
        if self.shape.tight and self.history.outages.away:
            return
        for chain in range(CHAINS):
            there = [
                isinstance(answers[f"c{chain}/{depth}".encode()], Hit) for depth in range(DEPTH)
            ]
            if any(later and not earlier for earlier, later in zip(there, there[1:], strict=False)):
                self.history.problems.append(f"P9: chain {chain} has a hole: {there}")

    def _compare_catalog(self) -> None:
        """Sealed slots and the catalog's committed replicas are the same set."""
        client = self.clients[0]
        stats: list[dict[str, Any]] = []
        client.run(operations.stat, 2.0, stats.append)
        self.world.run(self.world.now + 2.5)
        sealed = sum(node.agent.usage()["sealed"] for node in self.nodes)
        held = int(stats[0]["replicas"]) if stats else -1
        if held != sealed:
            self.history.problems.append(
                f"P2: agents hold {sealed} sealed objects, the catalog {held} replicas"
            )


def _outcome(result: PutResult) -> str:
    if result.status is PutStatus.STORED:
        return "stored"
    if result.status is PutStatus.EXISTS:
        return "exists"
    # Lost or unreachable: whether the commit arrived is not known to the client.
    if result.status in (PutStatus.LOST, PutStatus.UNREACHABLE, PutStatus.RECOVERING):
        return "unknown"
    return "failed"


def run_seed(seed: int) -> list[str]:
    scenario = Scenario(seed)
    try:
        return scenario.run()
    finally:
        scenario.close()
