"""P2, P3: writers die or stop in the middle of a put. Nothing shows, the space returns, the next
writer gets the key, and nobody else's object changes."""

import signal
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from moonpool.pool.pool import Pool
from moonpool.pool.results import Hit, PutResult, PutStatus
from tests.faults.pool_rig import (
    KIB,
    MIB,
    Rig,
    answered_within,
    await_usage,
    eventually,
    live_nodes,
    running,
    stamp,
    usage,
)

pytestmark = pytest.mark.faults

SIZE = 3 * MIB
RESERVATION_MS = 2500


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    # Only the end of its session may free what a dead writer held: its time is not over.
    with running(nodes=1, memory=24 * MIB, reservation_ms=120_000) as rig:
        yield rig


@pytest.fixture
def pool(rig: Rig) -> Pool:
    return rig.connect()


class Put(threading.Thread):
    """A put in a thread; `result` is what it came to."""

    def __init__(self, pool: Pool, key: str, value: bytes, wait_s: float) -> None:
        super().__init__()
        self._put = partial(pool.put, key, value, wait_s=wait_s, timeout_s=wait_s + 10)
        self.result: PutResult | None = None
        self.start()

    def run(self) -> None:
        self.result = self._put()

    def answer(self) -> PutResult:
        self.join()
        assert self.result is not None
        return self.result


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("step", ["reserved", "session", "sealed"])
def test_a_killed_writer_leaves_nothing(
    rig: Rig, pool: Pool, step: str, shared_memory: bool
) -> None:
    await_usage(pool, writing=0, retired=0, sealed=0)
    before, key = usage(pool), f"dead/{step}/{shared_memory}"
    writer = rig.role(step, key, SIZE, shared_memory=shared_memory)
    writer.expect("holds")
    assert not pool.exists(key)
    assert pool.get(key) is None
    assert key.encode() not in [item.key for item in pool.list()]
    if step != "reserved":
        eventually(lambda: usage(pool) != before, "the agent says what the writer holds")
    assert pool.stat()["reservations"] == 1
    writer.kill()
    eventually(lambda: pool.stat()["reservations"] == 0, "the reservation ends")
    eventually(lambda: pool.stat()["promised_bytes"] == 0, "the promise ends")
    await_usage(pool, **before)
    assert pool.put(key, stamp(key, SIZE)).status == PutStatus.STORED
    assert pool.get(key) == stamp(key, SIZE)
    pool.remove(key)


def test_a_second_writer_is_told_the_key_is_in_flight(rig: Rig, pool: Pool) -> None:
    writer = rig.role("session", "busy", SIZE)
    writer.expect("holds")
    answer = answered_within(0.2, lambda: pool.put("busy", stamp("other", 10), wait_s=0.2))
    assert answer.status == PutStatus.IN_FLIGHT
    assert pool.get("busy") is None
    writer.tell("commit")
    writer.expect("stored")
    assert pool.get("busy") == stamp("busy", SIZE)
    pool.remove("busy")


def test_a_second_writer_waits_and_finds_the_first_ones_value(rig: Rig, pool: Pool) -> None:
    watcher = rig.connect()
    writer = rig.role("session", "slow", SIZE)
    writer.expect("holds")
    second = Put(pool, "slow", stamp("other", 10), wait_s=30)
    eventually(lambda: watcher.stat()["waiters"] == 1, "the second writer waits")
    writer.tell("commit")
    assert second.answer().status == PutStatus.EXISTS
    assert pool.get("slow") == stamp("slow", SIZE)
    pool.remove("slow")


def test_a_second_writer_inherits_the_key_of_one_that_dies(rig: Rig, pool: Pool) -> None:
    watcher = rig.connect()
    writer = rig.role("session", "heir", SIZE)
    writer.expect("holds")
    second = Put(pool, "heir", stamp("other", 10), wait_s=30)
    eventually(lambda: watcher.stat()["waiters"] == 1, "the second writer waits")
    writer.kill()
    assert second.answer().status == PutStatus.STORED
    assert pool.get("heir") == stamp("other", 10)
    pool.remove("heir")


def fill(pool: Pool, size: int) -> dict[str, int]:
    """Objects until the pool takes no more: pinned, so that none evicts another."""
    sizes: dict[str, int] = {}
    while True:
        key = f"fill/{len(sizes)}"
        result = pool.put_many([key], [stamp(key, size)], pin="hard", timeout_s=0.5)[0]
        if result.status != PutStatus.STORED:
            assert result.status in (PutStatus.FULL, PutStatus.UNREACHABLE), result
            return sizes
        sizes[key] = size


def assert_whole(pool: Pool, sizes: dict[str, int]) -> None:
    for key, size in sizes.items():
        answer = pool.get_many([key])[0]
        assert isinstance(answer, Hit), f"{key}: {answer}"
        assert answer.data == stamp(key, size), key


@pytest.mark.parametrize("node_dies", [True, False])
def test_a_writer_woken_late_changes_no_other_object(node_dies: bool) -> None:
    with running(nodes=1, memory=24 * MIB, reservation_ms=RESERVATION_MS) as rig:
        pool = rig.connect()
        writer = rig.role("scribble", "late", 8 * MIB)
        writer.expect("holds")
        writer.stop()
        if node_dies:
            rig.kill(rig.nodes[0])
            rig.restart()
            eventually(lambda: live_nodes(pool) == 1, "the node is back")
        eventually(lambda: pool.stat()["reservations"] == 0, "the reservation ends")
        await_usage(pool, writing=0, retired=1)
        sizes = fill(pool, 512 * KIB)
        assert len(sizes) >= 24, "the pool could not be filled"
        assert usage(pool)["retired"] == 1, "its memory must wait for the writer"
        writer.wake()
        writer.expect("over")
        assert_whole(pool, sizes)
        writer.kill()
        await_usage(pool, writing=0, retired=0)
        assert_whole(pool, sizes)
        assert pool.get("late") is None


def test_a_stopped_writers_put_over_tcp_is_not_its_neighbours(rig: Rig, pool: Pool) -> None:
    """Stopped in the middle of a frame: its slot ends with it, the next put is whole."""
    writer = rig.role("putting", "frame", 6 * MIB, shared_memory=False)
    writer.expect("ready")
    for _ in range(4):
        writer.expect("stored")
        writer.stop()
        assert pool.put("beside", stamp("beside", MIB), replace=True).ok
        assert pool.get("beside") == stamp("beside", MIB)
        answer = pool.get_many(["frame"], timeout_s=2)[0]
        assert not isinstance(answer, Hit) or answer.data == stamp("frame", 6 * MIB)
        writer.wake()
    writer.process.send_signal(signal.SIGSTOP)
    writer.kill()
    pool.remove(["beside", "frame"])
    await_usage(pool, writing=0, retired=0, sealed=0)
