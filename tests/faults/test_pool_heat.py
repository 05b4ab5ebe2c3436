"""Hot objects over real processes: readers and nodes count as hosts of their own (`host_id`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from moonpool.pool.pool import Pool
from tests.faults.pool_rig import KIB, LATE_S, Rig, counter, eventually, running, stamp

pytestmark = pytest.mark.faults

RATE, READS = 30, 20  # a second that makes hot, and of each reader in a burst
COLD_S = 2.0
GAINED_S = 5.0  # promised
KEY, SIZE = "hot", 50 * KIB


@pytest.fixture
def rig() -> Iterator[Rig]:
    settings: dict[str, Any] = {"hot_reads_per_s": float(RATE), "hot_hosts": 3}
    settings |= {"cold_after_s": COLD_S, "nodes_expected": 3}
    with running(nodes=3, hosts=True, **settings) as rig:
        yield rig


def burst(readers: list[Pool]) -> None:
    """Reads that the master hears of within a moment, each of them the right bytes."""
    for reader in readers:
        for _ in range(READS):
            assert reader.get(KEY) == stamp(KEY, SIZE)
    for reader in readers:
        reader.flush()


def copies(pool: Pool) -> int:
    (found,) = pool.list(KEY)
    return found.replicas


def test_what_three_hosts_read_gains_a_copy_and_loses_it_when_it_is_cold(rig: Rig) -> None:
    readers = [rig.connect(host_id=f"h{i}") for i in range(3)]
    writer = rig.connect(host_id="elsewhere")
    writer.put(KEY, stamp(KEY, SIZE))
    began = time.monotonic()
    most = 1
    while copies(writer) == 1:
        burst(readers)
        assert time.monotonic() < began + GAINED_S + LATE_S, "no copy came"
    print(f"a copy more after {time.monotonic() - began:.2f} s")
    for _ in range(5):
        burst(readers)
        most = max(most, copies(writer))
    assert most == 2 and counter(writer, "hot_objects") == 1
    cold = time.monotonic()
    eventually(lambda: copies(writer) == 1, "the copy goes")
    assert COLD_S / 2 < time.monotonic() - cold < COLD_S + GAINED_S + LATE_S
    print(f"it went after {time.monotonic() - cold:.2f} s; cold_after_s is {COLD_S}")
    assert counter(writer, "hot_objects") == 0
    burst(readers[:2])  # that they are read on is no reason for another one
    assert copies(writer) == 1


def test_as_many_reads_of_two_hosts_make_nothing_hot(rig: Rig) -> None:
    """Three clients, two of which count as one host."""
    readers = [rig.connect(host_id=host) for host in ("h0", "h1", "h1")]
    readers[0].put(KEY, stamp(KEY, SIZE))
    for _ in range(20):
        burst(readers)
        assert counter(readers[0], "hot_objects") == 0 and copies(readers[0]) == 1


def test_memory_is_mapped_within_a_host_only(rig: Rig) -> None:
    writer = rig.connect(host_id="h1")
    writer.put(KEY, stamp(KEY, SIZE))
    assert writer.match_prefix([KEY]).nodes == ["n1"], "the writer's host comes first"
    for host, here in (("h1", True), ("h0", False), ("", False)):
        with rig.connect(host_id=host) as pool:
            view = pool.view(KEY)
            assert view.zero_copy is here and view.data is not None
            assert bytes(view.data) == stamp(KEY, SIZE)
            view.close()


def test_copies_lie_on_several_hosts(rig: Rig) -> None:
    pool = rig.connect()
    assert pool.put(KEY, stamp(KEY, SIZE), replicas=3).replicas == 3
    segments: Any = pool.stat()["segments"]
    assert sorted(one["domain"] for one in segments.values()) == ["h0", "h1", "h2"]
