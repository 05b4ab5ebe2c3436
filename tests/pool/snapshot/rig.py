"""A world of a master and nodes whose snapshots are kept in memory, and restarts from them."""

from __future__ import annotations

from moonpool.pool.snapshot.saved import Saved
from moonpool.pool.snapshot.writer import frames
from tests.pool.master_world import MasterWorld, Node

Contents = dict[bytes, tuple[int, int, tuple[tuple[bytes, int, int], ...]]]


def saved_of(data: bytes) -> Saved:
    return Saved(lambda at, length: data[at : at + length], len(data))


def snapshot(world: MasterWorld, slots_a_step: int = 32) -> bytes:
    """All of it at one moment."""
    master = world.master
    return b"".join(frames(master.catalog, master.nodes.links, world.wall_ms, slots_a_step))


def settle(world: MasterWorld) -> None:
    """All nodes say what has changed."""
    world.pass_time(1.0)


def restart(world: MasterWorld, data: bytes | None, *, join: bool = True) -> int:
    """The master dies; a new one begins, from a snapshot or from nothing. A client of it."""
    saved = None if data is None else saved_of(data)
    instance = int.from_bytes(world.master.instance, "little") + 1
    world.start(instance, first_term=world.master.catalog.term + 1, saved=saved)
    if join:
        for node in world.nodes:
            world.join(node)
    return world.client()


def contents(world: MasterWorld) -> Contents:
    """Version and places of every committed key."""
    catalog = world.master.catalog
    table = catalog.table
    rows, _ = catalog.scan(0, 1 << 20, b"")
    found: Contents = {}
    for row in rows.tolist():
        _, replicas = table.replicas_of(rows[rows == row])
        places = sorted(
            (
                catalog.segments[int(table.replica_segment[r])].incarnation,
                int(table.replica_slot[r]),
                int(table.replica_generation[r]),
            )
            for r in replicas.tolist()
        )
        found[table.key(row)] = (int(table.term[row]), int(table.seq[row]), tuple(places))
    return found


def sealed(nodes: list[Node]) -> int:
    return sum(node.agent.usage()["sealed"] for node in nodes)
