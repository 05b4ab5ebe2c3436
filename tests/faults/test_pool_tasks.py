"""Tasks outlive who asked for them; a new master says that it does not have them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moonpool.core.errors import MoonpoolError
from moonpool.pool.pool import Pool
from moonpool.pool.results import TaskState
from tests.faults.pool_rig import KIB, MIB, Rig, eventually, live_nodes, running, stamp

pytestmark = pytest.mark.faults

SIZES = {f"t/{i}": 100 * KIB + i for i in range(60)}


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running(nodes=2, memory=24 * MIB) as rig:
        yield rig


def store(pool: Pool) -> dict[str, str]:
    """All of them, and the node that each lies on."""
    for key, size in SIZES.items():
        pool.put(key, stamp(key, size))
    return dict(zip(SIZES, pool.match_prefix(list(SIZES)).nodes, strict=True))


def all_right(pool: Pool) -> bool:
    return all(pool.get(key) == stamp(key, size) for key, size in SIZES.items())


def test_a_task_goes_on_without_the_client_that_asked(rig: Rig) -> None:
    pool = rig.connect()
    where = store(pool)
    asker = rig.role("move", "n1", *SIZES)
    (id_,) = asker.line()
    asker.kill()
    info = pool.task(id_).wait(timeout_s=60)
    assert info.state is TaskState.DONE and info.done == len(SIZES)
    fresh = rig.connect()
    assert set(fresh.match_prefix(list(SIZES)).nodes) == {"n1"}
    assert all_right(fresh) and all_right(pool), "remembered placements, too"
    moved = sum(SIZES[key] for key, node in where.items() if node == "n0")
    assert info.size == moved > 0


def test_readable_while_it_moves(rig: Rig) -> None:
    pool = rig.connect()
    store(pool)
    for target in ("n1", "n0", "n1"):
        task = pool.move(list(SIZES), target)
        while task.info().running:
            assert all_right(pool)
        assert task.info().done == len(SIZES)


def test_a_node_killed_under_a_copy_ends_nothing_but_its_part(rig: Rig) -> None:
    pool = rig.connect()
    where = store(pool)
    task = pool.copy(list(SIZES), "n1", deadline_s=60)
    rig.kill(rig.node("n1"))
    rig.restart()
    eventually(lambda: live_nodes(pool) == 2, "the node is back")
    info = task.wait(timeout_s=70)
    assert info.state is TaskState.DONE
    assert all_right(rig.connect())
    results = dict(task.results())
    assert len(results) == len(where)


def test_a_new_master_has_lost_it_and_it_can_be_begun_anew(rig: Rig) -> None:
    pool = rig.connect()
    store(pool)
    task = pool.copy(list(SIZES), "n1", deadline_s=300)
    rig.kill(rig.master)
    rig.restart()

    def told() -> TaskState | None:
        try:
            return task.info(timeout_s=2).state
        except MoonpoolError:
            return None

    assert eventually(told, "the new master answers") is TaskState.LOST
    eventually(lambda: live_nodes(pool) == 2, "both nodes are back")
    again = pool.copy(list(SIZES), "n1").wait(timeout_s=60)
    assert again.state is TaskState.DONE and again.ok
    assert again.id != task.id
    assert all_right(pool)
