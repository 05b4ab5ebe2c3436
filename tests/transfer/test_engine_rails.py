"""The engine's rails between two real processes over 127.0.0.1 and 127.0.0.2: shared, cut, held up
and mended in mid-transfer, every byte looked at.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moonpool.core.address import parse_address
from moonpool.core.errors import BadConfig, BadInput, TooManyOps, Unreachable
from moonpool.core.host import host_id
from moonpool.transfer.base import OpState
from moonpool.transfer.cost import CostClass
from moonpool.transfer.engine import Engine
from moonpool.transfer.peer import Peer
from moonpool.transfer.peer_rails import RAILS_MAX, planned
from moonpool.transfer.rails import RailState, StripedOp
from moonpool.transfer.segment import Segment
from moonpool.transfer.topology import UNKNOWN_NODE, this_machine
from tests.transfer.conftest import stamped, state_of
from tests.transfer.owner import BIG_BYTES, BIG_SEED, BLOCK, Owner, wait_until
from tests.transfer.proxy import Proxy

pytestmark = pytest.mark.faults

BIG = stamped(BIG_BYTES, BIG_SEED)
MINE = stamped(BIG_BYTES, 10)


@pytest.fixture
def owner(folder: str) -> Iterator[Owner]:
    with Owner(folder, hosts=["127.0.0.2"]) as owner:
        yield owner


@pytest.fixture
def engine(folder: str) -> Iterator[Engine]:
    options: dict[str, Any] = {"connect_timeout_ms": 10_000, "slice_bytes": 256 << 10}
    with Engine(dir=folder, shared_memory=False, deadline_ms=60_000, **options) as engine:
        yield engine


def rails_up(peer: Peer, count: int = 2) -> None:
    wait_until(lambda: sum(line.up for line in peer.rails.lines) == count)


def striped(op: Any) -> StripedOp:
    assert isinstance(op, StripedOp)
    return op


def move(engine: Engine, peer: Peer, kind: str, memory: Segment) -> StripedOp:
    """All of the peer's `big` into `memory`, or the other way round."""
    far = peer.segment("big")
    if kind == "read":
        return striped(engine.read(memory, None, far, None))
    return striped(engine.write(memory, None, far, None))


def there(engine: Engine, peer: Peer) -> Any:
    """What the peer's `big` holds, read over one connection."""
    memory = engine.allocate(BIG_BYTES)
    half = BIG_BYTES // 8
    for at in range(0, BIG_BYTES, half):
        engine.read(memory, (at, half), peer.segment("big"), (at, half)).wait()
    return memory.array


def right(engine: Engine, peer: Peer, kind: str, memory: Segment) -> bool:
    if kind == "read":
        return np.array_equal(memory.array, BIG)
    return np.array_equal(there(engine, peer), MINE)


def memory_for(engine: Engine, kind: str) -> Segment:
    return engine.allocate(BIG_BYTES) if kind == "read" else engine.register(MINE.copy())


def test_two_listeners_are_two_rails_and_share(owner: Owner, engine: Engine) -> None:
    peer = engine.connect(owner.address)
    rails_up(peer)
    assert [line.address for line in peer.rails.lines] == owner.addresses
    for kind in ("read", "write"):
        memory = memory_for(engine, kind)
        op = move(engine, peer, kind, memory)
        assert op.wait() and op.check().transport == "tcp"
        assert sum(op.rail_bytes.values()) == BIG_BYTES and len(op.rail_bytes) == 2
        assert right(engine, peer, kind, memory)
    assert engine.stats()["ops"]["tcp"]["DONE"] >= 2


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_rail_cut_in_mid_transfer(owner: Owner, engine: Engine, kind: str) -> None:
    with Proxy(owner.addresses[1], cut_at=3 << 20) as proxy:
        peer = engine.connect(owner.address, rails=[proxy.address])
        rails_up(peer)
        memory = memory_for(engine, kind)
        op = move(engine, peer, kind, memory)
        assert op.wait() and op.check().nbytes == BIG_BYTES
        assert proxy.carried >= 3 << 20
        assert op.rail_bytes[owner.address] > op.rail_bytes.get(proxy.address, 0)
        assert right(engine, peer, kind, memory)
        proxy.mend()
        rails_up(peer)
        # Readmitted: what it gets now, it carries.
        while peer.rails.views()[proxy.address].state is not RailState.UP:
            again = move(engine, peer, kind, memory)
            assert again.wait() and again.check()
        assert right(engine, peer, kind, memory)


def test_a_held_up_write_is_not_applied_over_what_came_later(owner: Owner, engine: Engine) -> None:
    with Proxy(owner.addresses[1]) as proxy:
        peer = engine.connect(owner.address, rails=[proxy.address])
        rails_up(peer)
        # Both rails have carried something, so that one being late is seen.
        for _ in range(2):
            assert move(engine, peer, "read", engine.allocate(BIG_BYTES)).wait()
        proxy.hold()
        memory = engine.register(MINE.copy())
        first = move(engine, peer, "write", memory)
        assert first.wait() and first.check() and proxy.address not in first.rail_bytes
        later = engine.register(stamped(BIG_BYTES, 11))
        second = engine.write(later, None, peer.segment("big"), None)
        assert second.wait() and second.check()
        proxy.release()
        rails_up(peer)
        assert np.array_equal(there(engine, peer), later.array)


def test_small_ops_go_on_over_the_other_rail(owner: Owner, engine: Engine) -> None:
    for kind in ("read", "write"):
        with Proxy(owner.addresses[1]) as proxy:
            peer = engine.connect(proxy.address, rails=[owner.address])
            rails_up(peer)
            far, memory = peer.segment("big"), engine.register(stamped(4096, 12))
            proxy.hold()
            if kind == "read":
                op = engine.read(memory, None, far, (0, 4096))
            else:
                op = engine.write(memory, None, far, (8192, 4096))
            assert not op.wait(0.05)
            proxy.cut()
            assert op.wait() and op.check().nbytes == 4096
            proxy.release()
            if kind == "read":
                assert np.array_equal(memory.array, BIG[:4096])
            else:
                assert np.array_equal(there(engine, peer)[8192:12288], memory.array)
            peer.close()


def test_priority_overtakes(owner: Owner, engine: Engine) -> None:
    with Proxy(owner.addresses[1], bytes_per_s=40e6) as proxy:
        peer = engine.connect(proxy.address, rails=[])
        far, bulk, small = peer.segment("big"), engine.allocate(BIG_BYTES), engine.allocate(4096)
        slow = engine.read(bulk, None, far, None, priority=-1)
        urgent = engine.read(small, None, far, (0, 4096), priority=5)
        assert urgent.wait() and urgent.check() and not slow.done()
        assert slow.wait() and slow.check()
        assert np.array_equal(bulk.array, BIG)


def test_with_all_rails_lost_it_fails_and_says_so(owner: Owner, engine: Engine) -> None:
    with Proxy(owner.addresses[1], bytes_per_s=20e6) as one:
        with Proxy(owner.addresses[0], bytes_per_s=20e6) as other:
            peer = engine.connect(one.address, rails=[other.address])
            rails_up(peer)
            for kind in ("read", "write"):
                op = move(engine, peer, kind, memory_for(engine, kind))
                for proxy in (one, other):
                    proxy.cut()
                assert op.wait() and state_of(op) is OpState.FAILED
                assert isinstance(op.error, Unreachable) and op.result.retryable
                for proxy in (one, other):
                    proxy.mend()
                rails_up(peer)
            memory = memory_for(engine, "read")
            assert move(engine, peer, "read", memory).wait()
            assert ((memory.array == BIG) | (memory.array == MINE)).all()


def test_a_killed_peer_that_comes_back_has_new_rails(
    folder: str, owner: Owner, engine: Engine
) -> None:
    peer = engine.connect(owner.address)
    old = peer.segment("big")
    rails_up(peer)
    owner.kill()
    wait_until(lambda: not peer.alive)
    with Owner(folder, owner.port, hosts=["127.0.0.3"]) as again:
        memory = engine.allocate(BIG_BYTES)
        assert engine.read(memory, None, old, None).wait()
        assert not memory.array.any()
        assert peer.segment("big").epoch == again.epoch
        rails_up(peer)
        op = move(engine, peer, "read", memory)
        assert op.wait() and op.check() and set(op.rail_bytes) == set(again.addresses)
        assert np.array_equal(memory.array, BIG)


def test_explain_says_which_rails_in_which_order_and_why(owner: Owner, engine: Engine) -> None:
    peer, memory = engine.connect(owner.address), engine.allocate(BLOCK)
    rails_up(peer)
    lines = [one for one in engine.explain(peer.segment("big"), local=memory) if one.rail]
    assert [(one.transport, one.rail, one.rank) for one in lines] == [
        ("tcp", owner.addresses[0], 0),
        ("tcp", owner.addresses[1], 0),
    ]
    for one in lines:
        assert one.usable and one.why.startswith("rank 0, up; near: lo (loopback")
    owner.kill()
    wait_until(lambda: not peer.alive)
    peer.rails.look()
    lines = [one for one in engine.explain(peer.segments["big"]) if one.rail]
    assert not any(one.usable for one in lines) and "down (" in lines[0].why


def test_forbidden_rails_carry_nothing(owner: Owner, folder: str) -> None:
    first, second = owner.addresses
    for forbidden, used in ((first, second), ("127.0.0.2", first)):
        with Engine(dir=folder, shared_memory=False, rail_forbid=forbidden) as engine:
            peer = engine.connect(first)
            rails_up(peer, 1)
            far, memory = peer.segment("big"), engine.allocate(BIG_BYTES)
            small = engine.read(memory, (0, BLOCK), far, (0, BLOCK))
            assert small.wait() and small.check()
            op = striped(engine.read(memory, None, far, None, priority=1))
            assert op.wait() and op.check() and set(op.rail_bytes) == {used}
            out = [one for one in engine.explain(far) if one.rank < 0]
            assert len(out) == 1 and "forbidden by transfer.rail_forbid" in out[0].why
    with Engine(dir=folder, rail_forbid="lo") as engine:
        with pytest.raises(BadConfig, match="no way to 127.0.0.1:.* is allowed"):
            engine.connect(first)


def test_policy_single_leaves_the_second_rail_alone(owner: Owner, folder: str) -> None:
    with Engine(dir=folder, shared_memory=False, rail_policy="single") as engine:
        peer = engine.connect(owner.address)
        rails_up(peer)
        memory = engine.allocate(BIG_BYTES)

        def by_the_first_alone() -> bool:
            op = move(engine, peer, "read", memory)
            assert op.wait() and op.check()
            if set(op.rail_bytes) == {owner.address}:
                return True
            # On a busy machine the first was too slow, and then the second one is for that.
            assert peer.rails.views()[owner.address].demotions > 0
            return False

        wait_until(by_the_first_alone)


def test_too_many_striped_ops_say_so(owner: Owner, folder: str) -> None:
    with (
        Proxy(owner.address) as proxy,
        Engine(dir=folder, shared_memory=False, striped_ops_max=2) as engine,
    ):
        peer = engine.connect(proxy.address, rails=[])
        far, memory = peer.segment("big"), engine.allocate(3 * BLOCK)
        proxy.hold()
        ops = [
            engine.read(memory, (at * BLOCK, BLOCK), far, (0, BLOCK), priority=1, deadline=30)
            for at in range(3)
        ]
        assert isinstance(ops[2].error, TooManyOps) and "ops_max is 2" in str(ops[2].error)
        proxy.release()
        assert all(op.wait() and op.check() for op in ops[:2])


def test_where_a_segment_is_is_known_at_both_ends(folder: str, tmp_path: Path) -> None:
    with Engine(dir=folder) as owner, Engine(dir=folder) as engine:
        mapped = owner.map(tmp_path / "file", 1 << 16, name="mapped", create=True)
        kv = owner.allocate(BLOCK, "kv")
        kv.array[:] = 1
        peer = engine.connect(owner.listen())
        assert kv.location.host == host_id() and kv.location.device == "cpu"
        assert peer.segment("mapped").location == mapped.location
        assert mapped.location.cost_class is CostClass.FILE
        assert mapped.location.device == str(tmp_path / "file")
        assert peer.segment("kv").location.host == host_id()
        nodes = {node.node for node in this_machine().nodes}
        assert kv.location.numa_node in nodes | {UNKNOWN_NODE}


def test_listening_twice_on_a_host_is_refused(folder: str) -> None:
    with Engine(dir=folder) as engine:
        first = engine.listen()
        with pytest.raises(BadInput, match=f"listens on {first} already"):
            engine.listen("127.0.0.1")
        second = engine.listen("127.0.0.2")
        assert engine.addresses == [first, second] and engine.address == first


def test_what_listens_everywhere_is_announced_address_by_address(folder: str) -> None:
    with Engine(dir=folder, token="a long token") as owner:
        address = owner.listen("0.0.0.0")
        port = parse_address(address).port
        with Engine(dir=folder, token="a long token") as engine:
            peer = engine.connect(f"127.0.0.1:{port}")
            hosts = [parse_address(path.address).host for path in peer.rails.paths]
            assert hosts[0] == "127.0.0.1" and "0.0.0.0" not in hosts


def test_which_announced_addresses_are_dialled() -> None:
    announced = ["127.0.0.1:5", "10.0.0.2:5", "10.0.0.1:5", "[fd00::2]:5"]
    # A peer's loopback is not ours, unless it is how we reach it.
    assert planned("10.0.0.1:5", announced) == ["10.0.0.1:5", "10.0.0.2:5", "[fd00::2]:5"]
    assert planned("127.0.0.1:5", ["127.0.0.2:6"]) == ["127.0.0.1:5", "127.0.0.2:6"]
    assert planned("unix:/run/x", announced) == ["unix:/run/x"]
    many = [f"10.0.1.{at}:5" for at in range(1, 60)]
    assert len(planned("10.0.0.1:5", many)) == RAILS_MAX


def test_an_address_that_nobody_answers_at_costs_a_rail_and_nothing_else(
    owner: Owner, engine: Engine
) -> None:
    dead = "127.0.0.1:1"
    peer = engine.connect(owner.address, rails=[dead, owner.addresses[1]])
    rails_up(peer)
    memory = engine.allocate(BIG_BYTES)
    op = move(engine, peer, "read", memory)
    assert op.wait() and op.check() and set(op.rail_bytes) == set(owner.addresses)
    (line,) = [one for one in engine.explain(peer.segment("big")) if one.rail == dead]
    assert not line.usable and "cannot connect to 127.0.0.1:1" in line.why


def test_another_process_at_an_address_is_no_rail(folder: str, owner: Owner) -> None:
    with (
        Owner(folder) as stranger,
        Engine(dir=folder, shared_memory=False) as engine,
    ):
        peer = engine.connect(owner.address, rails=[stranger.address])
        wait_until(lambda: "another process" in peer.rails.lines[1].why)
        assert not peer.rails.lines[1].up


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"transport": "tpc"}, "unknown transport 'tpc'.*Did you mean 'tcp'"),
        ({"priority": 1001}, "outside -1000..1000"),
        ({"priority": 0.5}, "give a whole number"),
        ({"priority": True}, "give a whole number"),
    ],
)
def test_what_cannot_be_asked_for(folder: str, how: dict[str, Any], said: str) -> None:
    with Engine(dir=folder) as engine:
        one, other = engine.allocate(BLOCK), engine.allocate(BLOCK)
        with pytest.raises(BadInput, match=said):
            engine.read(one, None, other, None, **how)
        assert not one.array.any()
