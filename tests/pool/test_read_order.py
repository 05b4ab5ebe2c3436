"""Which copy a read tries first: by medium, by way, by place, by what reads of its node took."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from moonpool.pool import messages as m
from moonpool.pool.client_state import ClientState, Placement, Replica
from moonpool.pool.hedging import SLOW_S, Hedging
from moonpool.pool.ports import BELOW, Outcome, Port, ReadCall, Status
from moonpool.pool.protocol import CallAgents, CallMaster, Context, RaceAgents
from moonpool.pool.protocol_get import LOOKS_MAX, fetch, lookup
from moonpool.pool.read_costs import FIRST_READS, UNKNOWN, ReadCosts
from moonpool.pool.read_order import BESIDE, ELSEWHERE, MAPPED, Rank, best, placed, weighed
from moonpool.pool.read_race import run_race
from moonpool.pool.results import Hit, Miss

HERE = "here"


class FakePort:
    def __init__(self, endpoint: m.SegmentEndpoint) -> None:
        self.local = bool(endpoint.path)
        self.kind = (
            "shm" if self.local else "tcp" if endpoint.medium == m.MEMORY else endpoint.medium
        )
        self.node = endpoint.node
        self.incarnation = endpoint.incarnation


def at(node: str, host: str, medium: str = m.MEMORY, path: str = "", **labels: str) -> Any:
    return node, host, medium, path, labels


def order(*segments: Any, labels: dict[str, str] | None = None) -> list[str]:
    """Nodes of one object's copies, which the master names in the order given."""
    state = ClientState(HERE, lambda one: cast(Port, FakePort(one)), labels=labels)
    endpoints = [
        m.SegmentEndpoint(i, bytes([i]) * 16, node, host, path=path, labels=own, medium=medium)
        for i, (node, host, medium, path, own) in enumerate(segments)
    ]
    state.learn(m.TopologyIs(1, 1, endpoints))
    count = len(segments)
    column = m.ReplicaColumn(
        bytes([count]),
        np.arange(count, dtype=np.uint16).tobytes(),
        np.zeros(count, np.uint32).tobytes(),
        np.ones(count, np.uint64).tobytes(),
    )
    one = (
        np.zeros(1, np.int32),
        np.ones(1, np.uint64),
        np.ones(1, np.uint64),
        np.ones(1, np.uint64),
    )
    row, term, sequence, size = (column_.tobytes() for column_ in one)
    found = m.Found(bytes([m.LookupStatus.FOUND]), row, term, sequence, size, bytes(4), column, 1)
    asking = lookup(Context(state, lambda: 0.0, 1.0), [b"k"])
    assert isinstance(next(asking), CallMaster)
    with pytest.raises(StopIteration) as end:
        asking.send(found)
    (placement,) = end.value.value
    assert isinstance(placement, Placement)
    return [replica.port.node for replica in placement.replicas]


def test_memory_comes_before_disk_and_that_before_an_object_store() -> None:
    segments = [at("far", "x", "remote"), at("disk", HERE, "disk"), at("memory", "y")]
    assert order(*segments) == ["memory", "disk", "far"]


def test_mapped_memory_then_this_hosts_then_others() -> None:
    segments = [at("other", "x"), at("beside", HERE), at("mapped", HERE, path="/p")]
    assert order(*segments) == ["mapped", "beside", "other"]


RACKS = [
    at("zone", "x", rack="b", zone="z"),
    at("away", "y", rack="c", zone="w"),
    at("rack", "v", rack="a", zone="z"),
]


def test_the_more_labels_a_node_shares_the_nearer_it_is() -> None:
    assert order(*RACKS, labels={"rack": "a", "zone": "z"}) == ["rack", "zone", "away"]
    assert order(*RACKS) == ["zone", "away", "rack"], "nothing is known: the master's order"


def test_a_clients_place_is_that_of_the_nodes_on_its_host() -> None:
    own = at("own", HERE, rack="a", zone="z")
    assert order(*RACKS, own) == ["own", "rack", "zone", "away"]
    assert order(*RACKS, own, labels={"rack": "c"}) == ["own", "away", "zone", "rack"]


def test_on_one_host_the_part_counts_that_the_client_was_given() -> None:
    parts = [
        at("far", HERE, path="/0", numa="0"),
        at("near", HERE, path="/1", numa="1"),
        at("away", "x", numa="1"),
    ]
    assert order(*parts, labels={"numa": "1"}) == ["near", "far", "away"]
    assert order(*parts) == ["far", "near", "away"], "nothing is known: the master's order"


# The order alone.


def port(name: str, kind: str = "tcp", local: bool = False) -> Port:
    endpoint = m.SegmentEndpoint(0, name.encode() * 16, name, "h", path="/p" if local else "")
    made = FakePort(endpoint)
    made.kind = kind
    return cast(Port, made)


def ranks_of(*ports: tuple[Port, int, bool]) -> dict[Port, Rank]:
    return {one: placed(one, distance, here) for one, distance, here in ports}


def first(ranks: dict[Port, Rank], *tried: Replica) -> str:
    replicas = [Replica(one, 0, 1) for one in ranks]
    chosen = best(replicas, tried, ranks)
    assert chosen is not None
    return chosen.port.node


def test_of_equals_in_place_and_medium_the_faster_is_first() -> None:
    a, b, costs = port("a"), port("b"), ReadCosts()
    ranks = ranks_of((a, 1, False), (b, 1, False))
    assert weighed(ranks, Hedging(), costs, 0.0) is None and first(ranks) == "a"
    for _ in range(FIRST_READS):
        costs.took(a.incarnation, 4096, 0.010, 0.0)
    told = weighed(ranks, Hedging(), costs, 0.0)
    assert told is not None and first(told) == "b", "b is not known yet: it is tried"
    for _ in range(FIRST_READS):
        costs.took(b.incarnation, 4096, 0.001, 0.0)
    told = weighed(ranks, Hedging(), costs, 0.0)
    assert told is not None and first(told) == "b"
    for _ in range(50):
        costs.took(b.incarnation, 4096, 0.100, 0.0)
    told = weighed(ranks, Hedging(), costs, 0.0)
    assert told is not None and first(told) == "a"


def test_one_about_as_fast_changes_nothing() -> None:
    a, b, costs = port("a"), port("b"), ReadCosts()
    ranks = ranks_of((a, 1, False), (b, 1, False))
    for _ in range(9):
        costs.took(a.incarnation, 4096, 0.0011, 0.0)
        costs.took(b.incarnation, 4096, 0.0010, 0.0)
    assert weighed(ranks, Hedging(), costs, 0.0) is None


def test_place_decides_before_speed_and_silence_before_place() -> None:
    near, far, costs, hedging = port("n"), port("f"), ReadCosts(), Hedging()
    ranks = ranks_of((far, 2, False), (near, 1, False))
    for _ in range(9):
        costs.took(near.incarnation, 4096, 0.100, 0.0)
        costs.took(far.incarnation, 4096, 0.001, 0.0)
    told = weighed(ranks, hedging, costs, 0.0)
    assert told is not None and first(told) == "n"
    hedging.lost(near, 0.0)
    told = weighed(ranks, hedging, costs, 0.0)
    assert told is not None and first(told) == "f"
    told = weighed(ranks, hedging, costs, SLOW_S + 0.1)
    assert told is not None and first(told) == "n"


def test_a_socket_of_this_host_is_nearer_than_another_host_and_mapped_memory_nearest() -> None:
    beside, mapped, away = port("b"), port("m", "shm", local=True), port("a")
    ranks = ranks_of((away, 0, False), (beside, 3, True), (mapped, 3, True))
    assert [rank.transport for rank in ranks.values()] == [ELSEWHERE, BESIDE, MAPPED]
    assert first(ranks) == "m"
    assert first(ranks, Replica(mapped, 0, 1)) == "b"
    assert first(ranks, Replica(mapped, 0, 1), Replica(beside, 0, 1)) == "a"
    assert best([Replica(away, 0, 1)], [Replica(away, 0, 1)], ranks) is None


# What is being reclaimed.


class Copy:
    """One port with one copy of the object; `status` is what a read of it says."""

    def __init__(self, number: int, kind: str, status: Status) -> None:
        self.local = kind == "shm"
        self.kind = kind
        self.node = f"n{number}"
        self.incarnation = bytes([number]) * 16
        self.status = status
        self.reads = 0

    def start(self, call: ReadCall, timeout_s: float) -> Any:
        self.reads += 1
        if self.status == Status.OK:
            for buffer in call.buffers:
                memoryview(buffer).cast("B")[:] = b"v" * memoryview(buffer).nbytes
        count = len(call.slots)
        status = np.full(count, self.status, np.uint8)
        return lambda: Outcome(status, sizes=np.full(count, 8, np.uint64))


COPIES = st.lists(
    st.tuples(
        st.sampled_from(["shm", "tcp", *BELOW]),
        st.sampled_from([Status.OK, Status.MOVED, Status.UNREACHABLE, Status.CORRUPT]),
        st.integers(0, 3),  # 2 to this power, in milliseconds, is what its reads took
    ),
    min_size=1,
    max_size=5,
)


@given(COPIES, st.integers(0, 15))
def test_no_copy_that_is_being_reclaimed_is_what_a_read_returns(
    drawn: list[tuple[str, Status, int]], silent: int
) -> None:
    """Whatever the reader believes of media, speed and silence. MOVED is what a copy says whose
    memory is being taken back; the master's next answer does not name it any more. A read asks the
    master LOOKS_MAX times at most."""
    assume(sum(status == Status.MOVED for _, status, _ in drawn) < LOOKS_MAX)
    copies = [Copy(i, kind, status) for i, (kind, status, _) in enumerate(drawn)]
    endpoints = [
        m.SegmentEndpoint(
            *(i, one.incarnation, one.node, HERE if one.local else f"h{i}"),
            path="/p" if one.local else "",
            medium=one.kind if one.kind in BELOW else m.MEMORY,
        )
        for i, one in enumerate(copies)
    ]
    state = ClientState(HERE, lambda one: cast(Port, copies[one.segment]))
    state.learn(m.TopologyIs(1, 1, endpoints))
    for i, (one, (_, _, power)) in enumerate(zip(copies, drawn, strict=True)):
        for _ in range(FIRST_READS if power else 0):
            state.costs.took(one.incarnation, 8, 2**power / 1000, 0.0)
        if silent >> i & 1:
            state.hedging.lost(cast(Port, one), 0.0)
    reading = fetch(Context(state, lambda: 0.5, 10.0), [b"k"], None)
    answer: Any = None
    with pytest.raises(StopIteration) as end:
        while True:
            effect = reading.send(answer)
            if isinstance(effect, RaceAgents):
                run_race(effect.race, lambda: 0.5)
                answer = None
            elif isinstance(effect, CallAgents):
                answer = [p.start(call, 1.0)() for p, call in effect.calls]
            elif isinstance(effect, CallMaster) and isinstance(effect.message, m.Lookup):
                listed = [one for one in copies if one.status != Status.MOVED or not one.reads]
                answer = found_at([copies.index(one) for one in listed])
            else:
                answer = m.Done()
    (result,) = end.value.value
    good = [one.node for one in copies if one.status == Status.OK]
    if good:
        assert isinstance(result, Hit) and result.node in good and result.data == b"v" * 8
    else:
        assert isinstance(result, Miss)
    assert all(one.reads <= 1 for one in copies if one.status == Status.MOVED)


def found_at(segments: list[int]) -> m.Found:
    """The master's answer: one object of eight bytes with these copies."""
    if not segments:
        absent, none = bytes([m.LookupStatus.ABSENT]), m.ReplicaColumn(b"\0")
        zero = bytes(8)
        return m.Found(absent, bytes(4), zero, zero, zero, bytes(4), none, 1)
    count = len(segments)
    column = m.ReplicaColumn(
        bytes([count]),
        np.array(segments, np.uint16).tobytes(),
        np.zeros(count, np.uint32).tobytes(),
        np.ones(count, np.uint64).tobytes(),
    )
    size = np.array([8], np.uint64).tobytes()
    one = np.ones(1, np.uint64).tobytes()
    return m.Found(bytes([m.LookupStatus.FOUND]), bytes(4), one, one, size, bytes(4), column, 1)


def test_unknown_comes_before_every_octave() -> None:
    costs = ReadCosts()
    for _ in range(FIRST_READS):
        costs.took(b"a", 0, 0.0, 0.0)
    assert costs.octave(b"a", 0.0) > UNKNOWN
