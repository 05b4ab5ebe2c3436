"""What goes down to a tier and comes back stays where its tenant may be, and within its share."""

from __future__ import annotations

import msgspec
import pytest

from moonpool.pool import messages as m
from moonpool.pool.columns import pack_keys
from tests.pool.master_world import CONFIG, Node
from tests.pool.tenancy.world import TenantWorld, tenant

STORED = m.PutStatus.COMMITTED
SIZE = 4096
CONFIGURED = msgspec.structs.replace(
    CONFIG, slow_start_s=0.0, offload="write", promote_window_s=60.0
)


def world_of(*tenants: object, **how: object) -> TenantWorld:
    return TenantWorld(*tenants, config=msgspec.structs.replace(CONFIGURED, **how))  # type: ignore[arg-type]


def lend(world: TenantWorld, objects: int, serves: str = "", medium: str = m.MEMORY) -> Node:
    """A segment with room for so many objects; of a node that serves one tenant alone, if named."""
    node = world.add_node(f"{medium}{serves}", objects * SIZE, medium)
    if serves:
        endpoint = msgspec.structs.replace(node.machine.endpoint, trust_domain=serves.encode())
        node.machine.endpoint = endpoint
        world.leave(node)
        world.join(node)
    return node


def put(world: TenantWorld, session: int, *names: str) -> None:
    """One put each, with time for its copy below."""
    for name in names:
        assert world.put(session, [name.encode()], SIZE) == [STORED]
        world.pass_time(0.2, 0.1)


def where(world: TenantWorld, session: int, name: str) -> list[int]:
    return sorted(segment for segment, _, _ in world.placed(session, name.encode()))


def read(world: TenantWorld, session: int, *names: str, times: int = 3) -> None:
    for _ in range(times):
        found = world.call(session, m.Lookup(pack_keys([one.encode() for one in names])), m.Found)
        world.call(session, m.Touch(m.Touches(found.row, found.sequence)), m.Done)
    world.pass_time(1.0, 0.1)


def sealed(node: Node) -> int:
    return int(node.agent.usage()["sealed"])


def test_a_tier_of_a_node_that_serves_one_takes_nothing_of_others() -> None:
    """Its files are readable by its user, as its memory is."""
    world = world_of(tenant("a"), tenant("b"))
    lend(world, 8)
    mine = lend(world, 8, "b", medium="disk")
    put(world, world.visitor("a"), "of a")
    assert sealed(mine) == 0
    put(world, world.visitor("b"), "of b")
    assert sealed(mine) == 1


def test_what_comes_back_goes_where_its_tenant_may_be() -> None:
    """Not into memory that `default` alone may map, though there is most room; and back into the
    memory that its own tenant alone may map."""
    world = world_of(tenant("a"))
    shared = lend(world, 2)
    of_default = lend(world, 16, "default")
    lend(world, 16, medium="disk")
    a = world.visitor("a")
    put(world, a, "k0", "k1", "k2")
    assert where(world, a, "k0") == [2]
    read(world, a, "k0")
    assert where(world, a, "k0") == [0, 2]
    assert sealed(of_default) == 0 and sealed(shared) == 2


def k0_comes_back(world: TenantWorld) -> None:
    """To the memory of the first node, from the tier of the second."""
    a = world.visitor("a")
    put(world, a, "k0", "k1", "k2")
    assert where(world, a, "k0") == [1]
    read(world, a, "k0")
    assert where(world, a, "k0") == [0, 1]


def test_its_own_memory_is_a_home_for_what_comes_back() -> None:
    world = world_of(tenant("a"))
    lend(world, 2, "a")
    lend(world, 16, "a", medium="disk")
    k0_comes_back(world)


@pytest.mark.parametrize("idle", [4, 0])
def test_who_may_not_borrow_has_its_own_objects_make_room_for_what_comes_back(idle: int) -> None:
    """Whether memory is idle or not."""
    world = world_of(tenant("a", quota_bytes=2 * SIZE, borrow=False), tenant("b"))
    lend(world, 2 + idle)
    lend(world, 16, medium="disk")
    k0_comes_back(world)
    assert world.held("a")["committed_bytes"] == 2 * SIZE


def test_what_comes_back_from_two_tiers_at_once_is_within_the_quota() -> None:
    world = world_of(tenant("a", quota_bytes=2 * SIZE, borrow=False))
    lend(world, 8)
    for _ in range(2):
        lend(world, 16, medium="disk")
    a = world.visitor("a")
    put(world, a, "k0", "k1", "k2", "k3")
    assert {*where(world, a, "k0"), *where(world, a, "k1")} == {1, 2}
    read(world, a, "k0", "k1")
    assert world.held("a")["committed_bytes"] == 2 * SIZE
    assert where(world, a, "k0")[0] == where(world, a, "k1")[0] == 0


def test_what_comes_back_of_a_borrower_takes_nothing_of_who_is_within_its_quota() -> None:
    world = world_of(tenant("a", quota_bytes=2 * SIZE), tenant("b", quota_bytes=2 * SIZE))
    lend(world, 4)
    lend(world, 16, medium="disk")
    a, b = world.visitor("a"), world.visitor("b")
    put(world, b, "b0", "b1")  # read by nobody: the coldest of all
    put(world, a, "k0", "k1", "k2")
    assert where(world, a, "k0") == [1]
    read(world, a, "k0")
    assert where(world, b, "b0") == where(world, b, "b1") == [0, 1]
    assert where(world, a, "k0") == [0, 1]
    assert world.held("a")["committed_bytes"] == 2 * SIZE


def test_what_its_tenants_tier_has_no_turn_for_is_not_forgotten_when_others_have() -> None:
    """It could not keep something a moment ago, and is left alone for a second."""
    world = world_of(tenant("a"), tenant("b"))
    lend(world, 8)
    of_a, of_b = lend(world, 8, "a", medium="disk"), lend(world, 8, "b", medium="disk")
    world.master.tiering._resting[2] = world.now + 1.0
    a, b = world.visitor("a"), world.visitor("b")
    put(world, b, "of b")
    put(world, a, "of a")
    assert (sealed(of_a), sealed(of_b)) == (1, 0)
    world.pass_time(2.0, 0.1)
    assert (sealed(of_a), sealed(of_b)) == (1, 1)
