"""Clocks that jump: TTLs live on the wall clock, leases on the boot clock, deadlines on neither.

The clocks of real processes cannot be set here; the machines take time as an argument.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from moonpool import _core
from moonpool.core.clock import ManualClock, SystemClock
from moonpool.core.sections import ClientConfig, NodeConfig
from moonpool.pool import messages as m
from moonpool.pool.local import LocalShell
from moonpool.pool.node_machine import NodeMachine
from moonpool.pool.pool import Pool
from moonpool.pool.ports import CLAIM_DTYPE
from moonpool.pool.results import Hit, Miss, MissReason
from tests.faults.pool_rig import stamp

MIB = 1 << 20
HOUR_MS = 3_600_000
LEASE_NS = 3_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start_s=1000.0, wall_ms=SystemClock().wall_ms())


@pytest.fixture
def pool(clock: ManualClock) -> Iterator[Pool]:
    config = NodeConfig(memory=4 * MIB, headroom=MIB)
    with Pool(LocalShell(config, clock), ClientConfig()) as pool:
        yield pool


def reason(answer: Hit | Miss) -> MissReason | None:
    return answer.reason if isinstance(answer, Miss) else None


def test_a_wall_clock_set_forward_ends_what_has_a_time_to_live(
    pool: Pool, clock: ManualClock
) -> None:
    pool.put("short", stamp("short", 900), ttl_s=60)
    pool.put("ever", stamp("ever", 900))
    clock.jump_wall(HOUR_MS)
    assert reason(pool.get_many(["short"])[0]) in (MissReason.ABSENT, MissReason.EXPIRED)
    assert not pool.exists("short")
    assert pool.get("ever") == stamp("ever", 900)
    assert pool.put("short", stamp("again", 9)).ok
    assert pool.get("short") == stamp("again", 9)


def test_who_knows_the_place_of_an_expired_object_misses_it_after_the_next_sweep(
    pool: Pool, clock: ManualClock
) -> None:
    pool.put("short", stamp("short", 900), ttl_s=60)
    assert pool.get("short") == stamp("short", 900)
    clock.jump_wall(HOUR_MS)
    clock.advance(2)
    pool.stat()  # the embedded pool lives when it is called
    assert pool.get("short") is None


def test_a_wall_clock_set_back_ends_nothing(pool: Pool, clock: ManualClock) -> None:
    pool.put("short", stamp("short", 900), ttl_s=60)
    pool.put("ever", stamp("ever", 900))
    clock.jump_wall(-HOUR_MS)
    for key in ("short", "ever"):
        assert pool.get(key) == stamp(key, 900)
    assert pool.put("new", stamp("new", 900)).ok
    assert pool.remove("short") == "removed"
    assert pool.get("short") is None


def test_a_suspend_breaks_no_call(pool: Pool, clock: ManualClock) -> None:
    pool.put("k", stamp("k", 900))
    with pool.view("k") as data:
        clock.suspend(86_400)
        assert bytes(data or b"") == stamp("k", 900)
    assert pool.get("k") == stamp("k", 900)
    assert pool.put("new", stamp("new", 900)).ok


class Suspended:
    """A leased node on a clock of its own, and a client of its memory, which reads the real one."""

    def __init__(self) -> None:
        self.agent = _core.SegmentAgent.create(None, MIB, MIB, 64, 4)
        self.client = _core.SegmentClient(self.agent.fd())
        endpoint = m.SegmentEndpoint(0, self.agent.incarnation, "n", "h")
        self.machine = NodeMachine(self.agent, endpoint, heartbeat_s=0.5)
        self.machine.connected(0.0)
        lease_ms, now = LEASE_NS // 1_000_000, SystemClock()
        adopt = m.Adopt(0, 1, bytes(16), lease_ms, now.wall_ms())
        self.machine.handle(adopt, 0.0, now.boottime_ns())
        while self.machine.inventory_pending():
            self.machine.inventory_chunk()

    def heartbeat(self, now: float, asleep_ns: int) -> None:
        """Sent, then the machine sleeps, then it is acknowledged."""
        sent = self.machine.tick(now, SystemClock().boottime_ns() - asleep_ns)
        assert any(isinstance(message, m.Heartbeat) for message in sent)
        self.machine.handle(m.HeartbeatAck(0, 1, False), now, SystemClock().boottime_ns())

    def put(self) -> tuple[int, int]:
        record = np.zeros(1, CLAIM_DTYPE)
        record[0]["size"], record[0]["term"], record[0]["key_len"] = 5, 1, 1
        status, slot, generation = self.agent.claim(record, b"k", 1)
        assert status[0] == 0
        self.agent.write(int(slot[0]), int(generation[0]), 0, b"value")
        assert self.agent.seal(slot, generation, slot, 1, 1)[0] == 0
        return int(slot[0]), int(generation[0])


def test_a_lease_ends_by_the_boot_clock() -> None:
    """The boot clock counts a suspend, the monotonic clock does not: nobody may read on the
    strength of a heartbeat from before it, also when its acknowledgement comes after it."""
    host = Suspended()
    where = host.put()
    host.heartbeat(1.0, asleep_ns=0)
    assert host.client.read_bytes(*where, True) == b"value"
    host.heartbeat(2.0, asleep_ns=LEASE_NS + 1)
    assert isinstance(host.client.read_bytes(*where, True), int)
    host.heartbeat(3.0, asleep_ns=0)
    assert host.client.read_bytes(*where, True) == b"value"
    host.client.close()
    host.agent.close()
