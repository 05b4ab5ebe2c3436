"""P7: the master, a node, or both are killed under load. What was acknowledged is read back whole,
what was removed stays away."""

import time
from collections.abc import Callable

import pytest

from moonpool.core.errors import MoonpoolError
from moonpool.pool.pool import Pool
from moonpool.pool.results import Hit, Miss, MissReason
from tests.faults.pool_rig import Rig, Role, eventually, live_nodes, put_each, running, seed, stamp

pytestmark = pytest.mark.faults

KEPT = 120


def kill_master(rig: Rig) -> None:
    rig.kill(rig.master)


def kill_node(rig: Rig) -> None:
    rig.kill(rig.nodes[0])


def kill_both(rig: Rig) -> None:
    rig.kill(rig.master, rig.nodes[0])


def kill_all(rig: Rig) -> None:
    rig.kill(rig.master, *rig.nodes)


FAULTS = [kill_master, kill_node, kill_both, kill_all]
Fault = Callable[[Rig], None]


def settled(rig: Rig, pool: Pool) -> None:
    """All nodes are heard again and the master has read what they hold."""

    def known() -> bool:
        try:
            return live_nodes(pool) == len(rig.nodes) and pool.stat()["recovering"] is False
        except MoonpoolError:
            return False

    eventually(known, "a pool that is whole again")


def read_all(pool: Pool, sizes: dict[str, int]) -> None:
    for key, answer in zip(sizes, pool.get_many(list(sizes)), strict=True):
        assert isinstance(answer, Hit), f"{key} was acknowledged and is {answer}"
        assert answer.data == stamp(key, sizes[key]), key


def none_there(pool: Pool, keys: list[str]) -> None:
    for key, answer in zip(keys, pool.get_many(keys), strict=True):
        assert isinstance(answer, Miss), f"{key} was removed and is back"
    assert not any(pool.exists(keys))
    assert not {item.key.decode() for item in pool.list()} & set(keys)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_quiet_pool_keeps_all_and_brings_nothing_back(fault: Fault) -> None:
    with running() as rig:
        pool = rig.connect()
        sizes = {f"kept/{i}": 97 * i for i in range(KEPT)}
        put_each(pool, sizes)
        gone = [f"gone/{i}" for i in range(20)]
        put_each(pool, dict.fromkeys(gone, 500))
        pool.remove(gone)
        remote = rig.connect(shared_memory=False)
        read_all(remote, sizes)
        fault(rig)
        rig.restart()
        settled(rig, pool)
        for reader in (pool, remote, rig.connect(), rig.connect(shared_memory=False)):
            read_all(reader, sizes)
            none_there(reader, gone)
        assert pool.put("after", stamp("after", 5000)).ok
        read_all(pool, sizes | {"after": 5000})


def test_what_is_removed_while_a_node_is_away_stays_removed() -> None:
    with running() as rig:
        pool = rig.connect()
        sizes = {f"k/{i}": 300 + i for i in range(60)}
        put_each(pool, sizes, replicas=2)
        gone, kept = list(sizes)[:30], dict(list(sizes.items())[30:])
        kill_node(rig)
        pool.remove(gone)
        rig.restart()
        settled(rig, pool)
        none_there(pool, gone)
        read_all(pool, kept)


def test_what_is_removed_while_a_node_is_away_stays_removed_after_a_new_master() -> None:
    with running() as rig:
        pool = rig.connect()
        sizes = {f"k/{i}": 300 + i for i in range(60)}
        put_each(pool, sizes, replicas=2)
        gone, kept = list(sizes)[:30], dict(list(sizes.items())[30:])
        kill_node(rig)
        pool.remove(gone)
        kill_master(rig)
        rig.restart()
        settled(rig, pool)
        none_there(pool, gone)
        read_all(pool, kept)


def test_a_replaced_value_does_not_come_back_with_its_node() -> None:
    with running() as rig:
        pool = rig.connect()
        pool.put("k", stamp("old", 900), replicas=2)
        kill_node(rig)
        pool.put("k", stamp("new", 900), replace=True)
        rig.restart()
        settled(rig, pool)
        kill_all(rig)
        rig.restart()
        settled(rig, pool)
        assert rig.connect().get("k") == stamp("new", 900)


class Account:
    """What the loaders said: which keys must be there, which must not, what went wrong."""

    def __init__(self) -> None:
        self.there: dict[str, int] = {}
        self.gone: set[str] = set()
        self.wrong: list[str] = []
        self.misses: dict[str, str] = {}

    def hear(self, lines: list[list[str]]) -> None:
        for kind, *words in lines:
            if kind == "P":
                self.there[words[0]] = int(words[1])
            elif kind == "R":
                self.there.pop(words[0], None)  # asked for, and perhaps done
            elif kind == "r":
                self.gone.add(words[0])
            elif kind == "W":
                self.wrong.append(words[0])
            elif kind == "M":
                self.misses[words[0]] = words[1]


@pytest.mark.parametrize("fault", FAULTS)
def test_under_load_nothing_acknowledged_is_lost(fault: Fault) -> None:
    draw = seed()
    with running() as rig:
        loaders: list[Role] = [rig.role("load", f"c{i}", draw.randrange(1 << 30)) for i in range(3)]
        for loader in loaders:
            loader.expect("ready")
        account = Account()
        for _ in range(2):
            time.sleep(draw.uniform(0.1, 0.6))
            fault(rig)
            time.sleep(draw.uniform(0, 0.2))
            rig.restart()
        pool = rig.connect()
        settled(rig, pool)
        time.sleep(0.3)  # some work after the last fault, too
        for loader in loaders:
            account.hear(loader.kill())
        settled(rig, pool)
        assert account.wrong == []
        assert MissReason.CORRUPT not in account.misses.values()
        assert account.there
        read_all(pool, account.there)
        none_there(pool, list(account.gone))
        print(f"{len(account.there)} kept, {len(account.gone)} removed, {account.misses}")
