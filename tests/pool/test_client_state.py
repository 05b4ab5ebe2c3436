"""What a client knows: ways to segments whose node was restarted, placements, reads."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

from moonpool.core.errors import Closed
from moonpool.pool.client_state import ClientState, Placement, TouchLog
from moonpool.pool.messages import SegmentEndpoint, TopologyIs, Touches
from moonpool.pool.ports import Port


class FakePort:
    def __init__(self, local: bool, pinned: bool = False) -> None:
        self.local = local
        self.pinned = pinned
        self.closed = False

    def close(self) -> None:
        self.closed = True
        if self.pinned:
            raise BufferError("views are held")


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def state_of(ports: list[FakePort]) -> ClientState:
    left = iter(ports)
    return ClientState("here", lambda endpoint: cast(Port, next(left)))


def learn(state: ClientState, **changes: Any) -> None:
    endpoint: dict[str, Any] = {
        "segment": 0,
        "incarnation": b"i" * 16,
        "node": "n",
        "host_id": "h",
    } | changes
    state.learn(TopologyIs(state.topology_version + 1, 1, [SegmentEndpoint(**endpoint)]))


def test_a_mapped_segment_stays_mapped_when_its_node_has_another_tcp_port() -> None:
    port = FakePort(local=True)
    state = state_of([port])
    learn(state, tcp="h:1", unix="/u", path="/p")
    assert state.port(0) is cast(Port, port)
    learn(state, tcp="h:2", unix="/u", path="/p")
    assert state.port(0) is cast(Port, port)
    assert not port.closed


def test_a_segment_reached_over_tcp_is_reached_at_its_new_port() -> None:
    before, after = FakePort(local=False), FakePort(local=False)
    state = state_of([before, after])
    learn(state, tcp="h:1")
    assert state.port(0) is cast(Port, before)
    learn(state, tcp="h:2")
    assert state.port(0) is cast(Port, after)
    assert before.closed


def test_open_views_do_not_keep_a_client_from_a_segment_that_moved() -> None:
    before, after = FakePort(local=True, pinned=True), FakePort(local=True)
    state = state_of([before, after])
    learn(state, unix="/u", path="/p")
    assert state.port(0) is cast(Port, before)
    learn(state, unix="/u", path="/elsewhere")
    assert state.port(0) is cast(Port, after)


def test_a_closed_client_opens_nothing_that_nobody_would_close() -> None:
    before, after = FakePort(local=True), FakePort(local=True)
    state = state_of([before, after])
    learn(state, unix="/u", path="/p")
    assert state.port(0) is cast(Port, before)
    state.close()
    assert before.closed
    with pytest.raises(Closed):
        state.port(0)


def test_a_client_closed_while_a_port_is_opened_closes_it() -> None:
    opening, opened = threading.Event(), FakePort(local=True)

    def open_port(endpoint: SegmentEndpoint) -> Port:
        opening.set()
        time.sleep(0.02)  # `close` comes meanwhile
        return cast(Port, opened)

    state = ClientState("here", open_port)
    learn(state, unix="/u", path="/p")
    thread = threading.Thread(target=state.port, args=(0,))
    thread.start()
    opening.wait()
    state.close()
    thread.join()
    assert opened.closed


def test_placements_of_a_batch_push_out_the_oldest() -> None:
    state = ClientState("here", lambda endpoint: cast(Port, None), cache_entries_max=3)
    places = [Placement(i, i, i, ()) for i in range(5)]
    state.remember_all([b"a", b"b"], places[:2])
    state.remember_all([b"c", b"d", b"e"], places[2:])
    assert list(state.cache) == [b"c", b"d", b"e"]


def test_batches_of_many_threads_push_out_the_oldest(switching: None) -> None:
    state = ClientState("here", lambda endpoint: cast(Port, None), cache_entries_max=3)
    failed: list[BaseException] = []

    def read(first: int) -> None:
        keys = [b"%d" % i for i in range(first, first + 1000)]
        try:
            for _ in range(20):
                state.remember_all(keys, [Placement(1, 1, 1, ())] * len(keys))
        except KeyError as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(i * 1000,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [] and len(state.cache) <= 3


def test_a_full_log_of_reads_forgets_the_oldest_whichever_way_they_came() -> None:
    one_by_one, at_once = TouchLog(4), TouchLog(4)
    for i in range(5):
        one_by_one.add(i, i, 0.0)
    at_once.extend(range(5), range(5), 0.0)
    for log in (one_by_one, at_once):
        assert np.frombuffer(log.take().row, np.int32).tolist() == [1, 2, 3, 4]
        assert len(log) == 0 and log.take().row == b""


def test_reads_logged_and_taken_by_many_threads_stay_whole(switching: None) -> None:
    log = TouchLog(1 << 20)
    taken: list[Touches] = []

    def read(first: int) -> None:
        for i in range(first, first + 5000):
            log.add(i, i * 7, 0.0)
            if i % 50 == 0:
                log.extend([i], [i * 7], 0.0)
                taken.append(log.take())

    threads = [threading.Thread(target=read, args=(i * 5000,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken.append(log.take())
    rows = np.concatenate([np.frombuffer(touches.row, np.int32) for touches in taken])
    sequences = np.concatenate([np.frombuffer(touches.sequence, np.uint64) for touches in taken])
    assert (sequences == rows.astype(np.uint64) * 7).all()
    assert sorted(rows.tolist()) == sorted([*range(20_000), *range(0, 20_000, 50)])


def test_a_port_asked_for_by_many_threads_is_opened_once() -> None:
    opened: list[FakePort] = []

    def open_port(endpoint: SegmentEndpoint) -> Port:
        time.sleep(0.02)  # the others come meanwhile
        opened.append(FakePort(local=True))
        return cast(Port, opened[-1])

    state = ClientState("here", open_port)
    learn(state, unix="/u", path="/p")
    got: list[Port | None] = []
    threads = [threading.Thread(target=lambda: got.append(state.port(0))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 1 and got == [cast(Port, opened[0])] * 4
