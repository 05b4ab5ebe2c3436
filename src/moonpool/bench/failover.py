"""A leader killed under load: how long until the next one has answered a get and a put.

A real etcd of three members, two masters, one node with a million objects, one client that gets and
puts all the time. The election lease is a second.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

import msgspec

import moonpool
from moonpool.bench.etcd_server import EtcdServers
from moonpool.bench.processes import VALUE_BYTES, fill, small_key
from moonpool.bench.runner import Row, Settings, make_row
from moonpool.core.errors import DeadlineExceeded, MoonpoolError
from moonpool.core.sections import ClientConfig, MasterConfig, NodeConfig
from moonpool.pool.cluster import Child, Cluster, local_directory
from moonpool.pool.ha_registry import Registry
from moonpool.pool.pool import Pool
from moonpool.pool.shell import BlockingShell

BENCH: Final = "failover"
OBJECTS: Final = 1_000_000
LEASE_MS: Final = 1000
GIVE_UP_S: Final = 60.0
HEADROOM: Final = 256 << 20


def rows(settings: Settings) -> Iterator[Row]:
    """One row; every round kills the leader and starts another master, which follows."""
    rounds = min(settings.rounds, 3)
    reads, writes = [], []
    with _pool_of_masters() as (cluster, pool, registry):
        fill(pool, OBJECTS)
        for number in range(rounds):
            _settled(cluster, registry)
            with _Load(pool, number) as load:
                leader = _leader(cluster, registry)
                killed = time.perf_counter()
                cluster.kill(leader)
                load.await_answers()
            reads.append(load.read_at - killed)
            writes.append(load.written_at - killed)
            cluster.replace_master(leader)
        found = sum(
            sum(pool.exists([small_key(n) for n in range(start, start + 1000)]))
            for start in range(0, OBJECTS, 1000)
        )
    yield make_row(
        BENCH,
        f"leader killed, {OBJECTS:,} objects, a hot standby, election lease {LEASE_MS} ms",
        rounds,
        {
            "first_get_s": statistics.median(reads),
            "first_put_s": statistics.median(writes),
            "worst_s": max(reads + writes),
            "objects": OBJECTS,
            "ok": found == OBJECTS,
        },
    )


class _Load:
    """Gets (asking the master each time) and puts, each in a thread, until both were answered by
    the next leader: begun after the kill, they end after it."""

    def __init__(self, pool: Pool, number: int) -> None:
        self.read_at = self.written_at = 0.0
        self._pool = pool
        self._number = number
        self._over = threading.Event()
        self._killed = threading.Event()
        self._threads = [threading.Thread(target=act) for act in (self._read, self._write)]

    def __enter__(self) -> _Load:
        for thread in self._threads:
            thread.start()
        time.sleep(0.5)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def await_answers(self) -> None:
        """From the kill on. Raises DeadlineExceeded."""
        self._killed.set()
        deadline = time.perf_counter() + GIVE_UP_S
        while not (self.read_at and self.written_at):
            if time.perf_counter() > deadline:
                raise DeadlineExceeded(f"no leader answered within {GIVE_UP_S:.0f} s")
            time.sleep(0.002)

    def _read(self) -> None:
        count = 0
        while not self._over.is_set() and not self.read_at:
            begun_after = self._killed.is_set()
            count += 1
            key = small_key((count * 7919) % OBJECTS)
            with suppress(MoonpoolError):
                if self._pool.get(key) is not None and begun_after:
                    self.read_at = time.perf_counter()

    def _write(self) -> None:
        count = 0
        while not self._over.is_set() and not self.written_at:
            begun_after = self._killed.is_set()
            count += 1
            with suppress(MoonpoolError):
                put = self._pool.put(f"load/{self._number}/{count}", bytes(VALUE_BYTES))
                if put.ok and begun_after:
                    self.written_at = time.perf_counter()


@contextmanager
def _pool_of_masters() -> Iterator[tuple[_Masters, Pool, Registry]]:
    with ExitStack() as stack:
        url = stack.enter_context(EtcdServers(3)).url("bench")
        directory = stack.enter_context(local_directory("bench"))
        node = NodeConfig(
            name="node0",
            memory=(OBJECTS + 100_000) * VALUE_BYTES,
            headroom=HEADROOM,
            slots=OBJECTS + (1 << 17),
            dir=str(directory),
            persist=False,
        )
        cluster = stack.enter_context(_Masters(url, node))
        registry = Registry(url)
        stack.callback(registry.close)
        config = ClientConfig(master=url, token="", timeout_ms=30_000, cache_entries_max=0)
        shell = BlockingShell(config)
        stack.callback(shell.close)
        yield cluster, Pool(shell, config), registry


class _Masters(Cluster):
    """A cluster with a second master; either may lead."""

    def __init__(self, url: str, node: NodeConfig) -> None:
        config = MasterConfig(port=0, ha=url, election_lease_ms=LEASE_MS, token="")
        super().__init__(config, [node], masters=2)


def _leader(cluster: Cluster, registry: Registry) -> Child:
    seen = registry.read()
    assert seen.leader is not None
    return next(m for m in cluster.masters if m.ready["address"] == seen.leader.address)


def _settled(cluster: Cluster, registry: Registry) -> None:
    """Until the master that stands by has followed everything. Raises DeadlineExceeded."""
    leader = _leader(cluster, registry)
    deadline = time.perf_counter() + GIVE_UP_S
    for one in cluster.masters:
        if one is leader:
            continue
        with moonpool.connect(one.ready["address"], token="", timeout_s=10) as direct:
            while int(msgspec.convert(direct.stat()["objects"], int)) < OBJECTS:
                if time.perf_counter() > deadline:
                    raise DeadlineExceeded("the standby does not follow")
                time.sleep(0.1)
