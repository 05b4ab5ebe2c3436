"""What an agent holds of a copy order that was given up before, beside what the next one made."""

from __future__ import annotations

from moonpool.pool import messages as m
from moonpool.pool.node_copies import keep
from tests.pool.master_world import MasterWorld, Node, stamp
from tests.pool.test_master_machine_copies import REPAIR, nodes_of, order_to
from tests.pool.test_master_machine_tiers import KEYS, SIZE, World


def hear_of_two(world: MasterWorld, node: Node, order: m.Copy, data: bytes) -> None:
    """The order is answered when another one's copy of the same version was reported with its own:
    that one's end came first, and its copy after that."""
    keep(node.agent, order, [data])
    answer = keep(node.agent, order, [data])
    world.now += 1.0
    world.hear(node)  # its heartbeat tells of both, and either may be this order's
    assert node.agent.usage()["sealed"] == 2
    world.from_node(node, answer)
    world.pass_time(1.0)
    assert node.agent.usage()["sealed"] == 1
    held = node.agent.inventory(0, 256)
    assert held["slot"].tobytes() == answer.slot
    assert held["generation"].tobytes() == answer.generation


def test_a_copy_of_an_order_given_up_does_not_stay_beside_that_of_the_next_one() -> None:
    """Found by seed 183 of the simulation with disks: it took its room for good."""
    world = MasterWorld(REPAIR)
    for _ in range(3):
        world.add_node()
    client = world.client()
    node, order = order_to(world, client, b"a")
    hear_of_two(world, node, order, stamp(b"a", 64))
    assert nodes_of(world, client, b"a") == [order.segment]


def test_so_it_is_on_a_tier() -> None:
    world = World()
    world.copying = False
    world.put_all(KEYS[0])
    order = world.tier.machine.copies.popleft()
    hear_of_two(world, world.tier, order, stamp(KEYS[0], SIZE))
    assert world.where(KEYS[0]) == [0, 1]
