"""What reads took: counted by the ports, told by clients, summed up by the master."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

from moonpool._core import ReadTimes
from moonpool.core.errors import Unreachable
from moonpool.pool import messages as m
from moonpool.pool.client_state import ClientState
from moonpool.pool.operations import flush
from moonpool.pool.pool import Pool
from moonpool.pool.ports import Port
from moonpool.pool.protocol import CallMaster, Context, MasterLost
from moonpool.pool.read_times import BOUNDS_S, BUCKETS, TRANSPORTS, Told, Untold
from tests.pool.master_world import MasterWorld


def report(transport: str = "tcp", nanoseconds: int = 1000, **counts: int) -> m.ReadTimes:
    """`b2=5`: five reads in bucket 2."""
    column = np.zeros(BUCKETS, np.uint64)
    for name, count in counts.items():
        column[int(name[1:])] = count
    return m.ReadTimes(transport, nanoseconds, column.tobytes())


def figures(told: Told, transport: str = "tcp") -> Any:
    return told.stat()[transport]


# At the client.


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool.local("16MiB") as pool:
        pool.put_many(["a", "b", "c"], [b"1" * 100, b"2" * 5000, b"3"])
        yield pool


def counted(pool: Pool) -> int:
    times = pool._state.read_times(0.0)
    assert [one.transport for one in times] in ([], ["local"])
    return sum(int(np.frombuffer(one.counts, np.uint64).sum()) for one in times)


def test_a_call_is_counted_once_however_many_keys_it_has(pool: Pool) -> None:
    pool.get_many(["a", "b", "c"])
    counted(pool)
    room = [bytearray(5000) for _ in "abc"]
    assert pool.get_into("b", room[0]) == 5000 and counted(pool) == 1
    assert pool.get("a") == b"1" * 100 and counted(pool) == 1
    pool.get_many_into(["a", "b", "c"], room)
    assert counted(pool) == 1
    assert pool.get_range("b", 10, 20) == b"2" * 20 and counted(pool) == 1
    assert counted(pool) == 0, "what was taken is not told again"


def test_what_brought_nothing_is_not_counted(pool: Pool) -> None:
    assert pool.get("missing") is None
    pool.get("a")
    counted(pool)
    pool.remove("a")
    assert pool.get("a") is None and counted(pool) == 0


def test_buckets_double() -> None:
    times = ReadTimes()
    for took in (0, 255, 256, 1023, 1 << 33, 1 << 60):
        times.add(took)
    counts, total = times.take()
    assert len(counts) == BUCKETS
    assert {i: int(n) for i, n in enumerate(counts) if n} == {0: 2, 1: 1, 2: 1, 26: 2}
    assert total == 255 + 256 + 1023 + (1 << 33) + (1 << 60)
    assert BOUNDS_S[0] == pytest.approx(256e-9) and BOUNDS_S[-1] == pytest.approx(2**33 / 1e9)
    empty, nothing = times.take()
    assert not empty.any() and nothing == 0


class TimedPort:
    local = False

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.read_times = ReadTimes()


def test_ports_of_one_kind_are_one_and_what_nobody_heard_is_told_again() -> None:
    ports = [TimedPort("tcp"), TimedPort("tcp"), TimedPort("disk")]
    for port in ports:
        port.read_times.add(300)
    untold = Untold()
    taken = untold.take([cast(Port, port) for port in ports], 1.0)
    assert {one.transport: one.nanoseconds for one in taken} == {"tcp": 600, "disk": 300}
    untold.give_back(taken)
    ports[0].read_times.add(300)
    again = untold.take([cast(Port, port) for port in ports], 2.0)
    assert {one.transport: one.nanoseconds for one in again} == {"tcp": 900, "disk": 300}
    assert untold.take([cast(Port, port) for port in ports], 3.0) == []


def test_a_flush_tells_them_also_when_no_read_waits_to_be_told() -> None:
    state = ClientState("here", lambda endpoint: cast(Port, TimedPort("tcp")))
    state.learn(m.TopologyIs(1, 1, [m.SegmentEndpoint(0, b"i" * 16, "n", "there")]))
    port = state.port(0)
    assert port is not None
    context = Context(state, lambda: 5.0, 9.0, patient=False)
    assert list(flush(context)) == [], "there is nothing to tell"
    port.read_times.add(700)
    assert state.to_tell(now=7.0, after_s=1.0) and not state.to_tell(now=5.5, after_s=1.0)
    telling = flush(context)
    effect = next(telling)
    assert effect == CallMaster(m.Touch(m.Touches(), [report("tcp", 700, b2=1)]))
    with pytest.raises(StopIteration):
        telling.send(MasterLost("away", code=Unreachable.code))
    again = next(flush(context))
    assert again == effect, "the master was away"


# At the master.


def test_reports_add_up_by_transport() -> None:
    told = Told()
    told.hear([report("tcp", 10**9, b3=2), report("shm", 500, b0=1)])
    told.hear([report("tcp", 10**9, b3=1, b26=1)])
    tcp = figures(told)
    assert tcp["count"] == 4 and tcp["sum"] == 2.0
    assert tcp["counts"][3] == 3 and tcp["counts"][26] == 1
    assert figures(told, "shm")["count"] == 1 and "disk" not in told.stat()


@pytest.mark.parametrize(
    "odd",
    [
        report("a label of its own", b0=1),
        m.ReadTimes("tcp", 5, b""),
        m.ReadTimes("tcp", 5, bytes(8)),
        report("tcp", b0=2**63, b1=2**63),
        report("tcp", b0=2**50),
        report("tcp", 2**80, b0=1),
        report("tcp", -1, b0=1),
    ],
)
def test_what_no_client_of_this_release_says_is_passed_over(odd: m.ReadTimes) -> None:
    told = Told()
    told.hear([odd, report("shm", b0=1)])
    assert list(told.stat()) == ["shm"]


def test_sums_stay_such_as_an_answer_can_carry() -> None:
    told = Told()
    for _ in range(1 << 8):
        told.hear([report(b0=1 << 40)])
    assert figures(told)["count"] == 1 << 48
    told._seconds["tcp"].count = (1 << 62) + 1
    told.hear([report(b0=1 << 40)])
    assert figures(told)["count"] == (1 << 62) + 1


def test_the_master_shows_what_it_was_told_and_takes_a_touch_without_it() -> None:
    world = MasterWorld()
    client = world.client()
    assert world.call(client, m.Touch(m.Touches()), m.Done) == m.Done(0)
    world.call(client, m.Touch(m.Touches(), [report("shm", 600, b2=1)]), m.Done)
    status = world.call(client, m.Stat(), m.Status)
    told = cast(Any, status.values["read_s"])
    assert list(told) == ["shm"] and told["shm"]["count"] == 1
    assert m.decode(m.encode(status, 1)).body == status
    assert set(TRANSPORTS) >= set(told)
