"""What simulated clients do all the time: puts, gets, removals, views, drains."""

from __future__ import annotations

from typing import Any

from moonpool.pool import operations
from moonpool.pool.client_state import Placement, Replica
from moonpool.pool.protocol_put import store
from moonpool.pool.protocol_reserve import PutOptions
from moonpool.pool.puts import NO_PARENT, PutItem
from moonpool.pool.results import Hit, Miss, PutResult, PutStatus, RemoveStatus
from tests.sim.client_actor import ClientActor
from tests.sim.history import HEADER, stamp
from tests.sim.pool import SimPool
from tests.sim.ports import SimPort

TIMEOUT_S = 1.5
CHAINS = 3
DEPTH = 5


def all_keys() -> list[bytes]:
    """Of all chains, and of the objects that are none."""
    return [f"c{c}/{d}".encode() for c in range(CHAINS) for d in range(DEPTH)] + [
        f"single{i}".encode() for i in range(4)
    ]


class Work:
    """One act of a client after the other, each checked against the history."""

    def __init__(self, pool: SimPool) -> None:
        self.pool = pool
        self.world = pool.world
        self.random = pool.random
        self.history = pool.history

    def act(self, client: ClientActor) -> None:
        """The next thing this client does; it goes on until the working time is over."""
        if self.world.now >= self.pool.end:
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
        client.later(self.random.uniform(0.0, 0.02), lambda: self.act(client))

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
        return 2 if self.pool.shape.nodes > 1 and self.random.random() < 0.3 else 1

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
        keys = self.random.sample(all_keys(), self.random.randint(1, 4))
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
        key = self.random.choice(all_keys())
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
        if not isinstance(port, SimPort) or port.segment is None:
            return False
        if self.world.boottime_ns() >= port.actor.valid_until_ns:
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
        name = self.random.choice(self.pool.nodes).name

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


def _outcome(result: PutResult) -> str:
    if result.status is PutStatus.STORED:
        return "stored"
    if result.status is PutStatus.EXISTS:
        return "exists"
    # Lost or unreachable: whether the commit arrived is not known to the client.
    if result.status in (PutStatus.LOST, PutStatus.UNREACHABLE, PutStatus.RECOVERING):
        return "unknown"
    return "failed"
