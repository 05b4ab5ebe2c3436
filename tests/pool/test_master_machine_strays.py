"""What an agent holds of a copy order that was given up before, beside what the next one made."""

from __future__ import annotations

from moonpool.pool.node_copies import keep
from tests.pool.master_world import MasterWorld, stamp
from tests.pool.test_master_machine_copies import REPAIR, nodes_of, order_to


def test_a_copy_of_an_order_given_up_does_not_stay_beside_that_of_the_next_one() -> None:
    """Found by seed 183 of the simulation with disks: it took its room for good."""
    world = MasterWorld(REPAIR)
    for _ in range(3):
        world.add_node()
    client = world.client()
    node, order = order_to(world, client, b"a")
    keep(node.agent, order, [stamp(b"a", 64)])  # as for an earlier order, whose end came first
    answer = keep(node.agent, order, [stamp(b"a", 64)])
    world.now += 1.0
    world.hear(node)  # its heartbeat tells of both, and either may be this order's
    assert node.agent.usage()["sealed"] == 2
    world.from_node(node, answer)
    world.pass_time(1.0)
    assert nodes_of(world, client, b"a") == [order.segment]
    assert node.agent.usage()["sealed"] == 1
    (placed,) = world.placed(client, b"a")
    assert placed[1] == int.from_bytes(answer.slot, "little")
