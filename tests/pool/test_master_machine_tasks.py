"""Tasks at the master: copies, moves and clearings of named keys, and what they answer."""

from __future__ import annotations

import msgspec
import pytest

from moonpool.pool import messages as m
from moonpool.pool.catalog.tasks import KEPT_S, RUNNING_MAX, TASKS_MAX
from moonpool.pool.columns import pack_keys, u8, unpack_keys
from moonpool.pool.master_limits import MasterLimits
from moonpool.pool.message_words import TaskKeyStatus as K
from moonpool.pool.message_words import TaskState as T
from moonpool.pool.messages import LookupStatus as L
from moonpool.pool.messages import PutStatus as S
from tests.pool.master_world import CONFIG, MasterWorld

SETTINGS = msgspec.structs.replace(CONFIG, repair_delay_s=0.5, slow_start_s=0.0)
KEYS = [b"k%d" % i for i in range(300)]


@pytest.fixture
def world() -> MasterWorld:
    world = MasterWorld(SETTINGS)
    for _ in range(3):
        world.add_node()
    return world


def begin(
    world: MasterWorld,
    client: int,
    kind: str,
    keys: list[bytes],
    target: str = "",
    source: str = "",
    name: bytes = b"",
    deadline_ms: int = 60_000,
) -> m.TaskIs:
    name = name or world.master.tasks.book._next.to_bytes(16, "little")
    call = m.BeginTask(kind, name, pack_keys(keys), target, source, deadline_ms)
    return world.call(client, call, m.TaskIs)


def ask(world: MasterWorld, client: int, id_: str, cancel: bool = False) -> m.TaskIs:
    return world.call(client, m.AskTask(id_, cancel, 0, 1000), m.TaskIs)


def outcomes(world: MasterWorld, client: int, id_: str) -> dict[bytes, K]:
    told = ask(world, client, id_)
    statuses = [K(byte) for byte in u8(told.status).tolist()]
    return dict(zip(unpack_keys(told.keys), statuses, strict=True))


def nodes_of(world: MasterWorld, client: int, key: bytes) -> list[int]:
    return sorted(segment for segment, _, _ in world.placed(client, key))


def test_a_copy_is_made_and_kept(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, KEYS[:20], prefer_segment=0)
    task = begin(world, client, "copy", KEYS[:20], "n2")
    assert (task.state, task.total, task.done) == (T.RUNNING, 20, 0)
    world.pass_time(1.5)
    told = ask(world, client, task.id)
    assert (told.state, told.done, told.failed, told.size) == (T.DONE, 20, 0, 20 * 64)
    assert set(outcomes(world, client, task.id).values()) == {K.DONE}
    world.pass_time(5.0)
    for key in KEYS[:20]:
        assert nodes_of(world, client, key) == [0, 2], "nothing trims it, nothing repairs it"
    world.leave(world.nodes[2])
    world.pass_time(4.0)
    assert nodes_of(world, client, KEYS[0]) == [0, 1], "a copy more is wanted of it from then on"


def test_more_keys_than_one_order_has(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, KEYS, prefer_segment=0, size=8)
    task = begin(world, client, "copy", KEYS, "n1")
    for _ in range(20):
        world.pass_time(0.5)
    assert ask(world, client, task.id).done == 256, "as many as the target has slots"
    assert ask(world, client, task.id).state == T.RUNNING


def test_a_move_leaves_nothing_behind(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, KEYS[:10], prefer_segment=0)
    task = begin(world, client, "move", KEYS[:10], "n1", "n0")
    world.pass_time(2.0)
    assert ask(world, client, task.id).state == T.DONE
    assert all(nodes_of(world, client, key) == [1] for key in KEYS[:10])
    assert world.nodes[0].agent.usage()["sealed"] == 0


def test_a_move_without_a_source_takes_the_copy_that_is_there(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], prefer_segment=2)
    task = begin(world, client, "move", [b"a"], "n1")
    world.pass_time(2.0)
    assert outcomes(world, client, task.id) == {b"a": K.DONE}
    assert nodes_of(world, client, b"a") == [1]


def test_a_clearing_gives_up_that_copy_and_no_last_one(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"two"], replicas=2, prefer_segment=0)
    world.put(client, [b"one"], prefer_segment=0)
    where = nodes_of(world, client, b"two")
    assert 0 in where
    task = begin(world, client, "clear", [b"two", b"one", b"none"], source="n0")
    world.pass_time(3.0)
    assert outcomes(world, client, task.id) == {
        b"two": K.DONE,
        b"one": K.LAST,
        b"none": K.ABSENT,
    }
    assert nodes_of(world, client, b"two") == [one for one in where if one != 0]
    assert world.look(client, b"one") == [L.FOUND]


def test_what_is_as_asked_for_is_left(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], prefer_segment=1)
    task = begin(world, client, "copy", [b"a", b"a"], "n1")
    world.pass_time(0.5)
    assert outcomes(world, client, task.id) == {b"a": K.ALREADY}


def test_it_outlives_the_session_that_asked(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, KEYS[:5], prefer_segment=0)
    world.copying = False
    task = begin(world, client, "copy", KEYS[:5], "n1")
    world.pass_time(0.5)
    world.perform(world.master.disconnected(client, world.now))
    world.copying = True
    for node in world.nodes:
        world.fetch_copies(node)
    world.pass_time(1.0)
    assert ask(world, world.client(), task.id).state == T.DONE


def test_the_same_name_is_the_same_task(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], prefer_segment=0)
    first = begin(world, client, "copy", [b"a"], "n1", name=bytes(16))
    again = begin(world, client, "copy", [b"a"], "n1", name=bytes(16))
    assert first.id == again.id and len(world.master.tasks.book) == 1


def test_without_room_it_waits_until_its_deadline_and_says_so() -> None:
    world = MasterWorld(SETTINGS)
    for _ in range(2):
        world.add_node(capacity=1 << 16)
    client = world.client()
    assert world.put(client, [b"a"], 40_000, prefer_segment=0) == [S.COMMITTED]
    assert world.put(client, [b"b"], 40_000, prefer_segment=1) == [S.COMMITTED]
    task = begin(world, client, "copy", [b"a"], "n1", deadline_ms=3000)
    world.pass_time(2.0)
    assert ask(world, client, task.id).state == T.RUNNING
    world.pass_time(2.0)
    assert ask(world, client, task.id).state == T.EXPIRED
    assert outcomes(world, client, task.id) == {b"a": K.NO_ROOM}
    assert world.look(client, b"b") == [L.FOUND], "no copy evicts"


def test_what_has_no_room_does_not_keep_others_from_their_turn() -> None:
    """Two keys a step, three that wait: the turn comes round to each of them."""
    world = MasterWorld(SETTINGS, limits=MasterLimits(copied_rows_a_step=2))
    for _ in range(2):
        world.add_node(capacity=1 << 16)
    client = world.client()
    assert world.put(client, [b"b"], 40_000, prefer_segment=1) == [S.COMMITTED]
    for key, size in ((b"large", 26_000), (b"larger", 27_000), (b"small", 64)):
        assert world.put(client, [key], size, prefer_segment=0) == [S.COMMITTED]
    task = begin(world, client, "copy", [b"large", b"larger", b"small"], "n1", deadline_ms=3000)
    world.pass_time(4.0)
    assert outcomes(world, client, task.id) == {
        b"large": K.NO_ROOM,
        b"larger": K.NO_ROOM,
        b"small": K.DONE,
    }


def test_cancelled_it_does_no_more(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, KEYS[:5], prefer_segment=0)
    world.copying = False
    task = begin(world, client, "copy", KEYS[:5], "n1")
    world.pass_time(0.5)
    told = ask(world, client, task.id, cancel=True)
    assert told.state == T.CANCELLED and set(u8(told.status).tolist()) == {K.CANCELLED}
    assert ask(world, client, task.id, cancel=True).state == T.CANCELLED
    assert world.master.catalog.table.wanted[:5].tolist() == [1] * 5, "no copy more is wanted"


def test_a_copy_that_cannot_be_made_is_tried_a_few_times(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], prefer_segment=0)
    world.copying = False
    task = begin(world, client, "copy", [b"a"], "n1", deadline_ms=120_000)
    world.pass_time(60.0)  # each order is given up after ORDER_S
    assert ask(world, client, task.id).state == T.DONE
    assert outcomes(world, client, task.id) == {b"a": K.FAILED}


def test_a_leased_copy_stays_until_its_lease_is_over(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], prefer_segment=0)
    found = world.call(client, m.Lookup(pack_keys([b"a"])), m.Found)
    world.call(client, m.Lease(0, found.row, found.sequence, 5000), m.Leased)
    task = begin(world, client, "move", [b"a"], "n1")
    world.pass_time(3.0)
    assert ask(world, client, task.id).state == T.RUNNING
    assert nodes_of(world, client, b"a") == [0]
    world.pass_time(5.0)
    assert nodes_of(world, client, b"a") == [1]


def test_a_new_master_says_that_it_is_lost(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], prefer_segment=0)
    task = begin(world, client, "copy", [b"a"], "n1")
    world.start(2, first_term=1)
    for node in world.nodes:
        world.join(node)
    world.pass_time(1.0)
    client = world.client()
    assert ask(world, client, task.id).state == T.LOST
    assert ask(world, client, f"{world.master.catalog.term}-99").state == T.UNKNOWN
    (refused,) = world.replies[world.ask(client, m.AskTask("no id"))]
    assert isinstance(refused, m.Failure) and refused.code == "bad_input"


def test_few_run_at_a_time_and_few_are_kept(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], prefer_segment=0)
    running = [begin(world, client, "clear", [b"a"], source="n0") for _ in range(RUNNING_MAX)]
    call = m.BeginTask("clear", bytes(16), pack_keys([b"a"]), "", "n0", 1000)
    (refused,) = world.replies[world.ask(client, call)]
    assert isinstance(refused, m.Failure) and refused.code == "not_ready"
    world.pass_time(1.0)
    assert ask(world, client, running[0].id).state == T.DONE
    for _ in range(TASKS_MAX):
        begin(world, client, "clear", [b"a"], source="n0")
        world.pass_time(0.2, step=0.2)
    assert ask(world, client, running[0].id).state == T.UNKNOWN
    listed = world.call(client, m.ListTasks(), m.Tasks).tasks
    assert len(listed) == TASKS_MAX and not any(one.status for one in listed)
    world.pass_time(KEPT_S + 1, step=100.0)
    begin(world, client, "clear", [b"a"], source="n0")
    world.pass_time(1.0)
    assert len(world.master.tasks.book) == 1


@pytest.mark.parametrize(
    ("kind", "target", "source"),
    [
        ("copy", "", ""),
        ("copy", "n0", "n1"),
        ("copy", "nobody", ""),
        ("move", "n0", "n0"),
        ("clear", "n0", ""),
        ("shred", "n0", ""),
    ],
)
def test_what_makes_no_sense_is_refused(
    world: MasterWorld, kind: str, target: str, source: str
) -> None:
    call = m.BeginTask(kind, bytes(16), pack_keys([b"a"]), target, source, 1000)
    (refused,) = world.replies[world.ask(world.client(), call)]
    assert isinstance(refused, m.Failure) and refused.code == "bad_input"
