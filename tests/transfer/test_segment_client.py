"""The shared-memory client: copies, writes and views, and what a forked child may not do."""

import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from moonpool import _core
from tests.transfer.shared_segment import (
    BOUNDS,
    CORRUPT,
    EXPIRED,
    MOVED,
    OK,
    REFUSED,
    claim,
    failed,
    memory_agent,
    put,
    retire,
    seal,
)

DATA = bytes(range(256)) * 16


@pytest.fixture
def agent() -> Iterator[_core.SegmentAgent]:
    with memory_agent() as made:
        yield made


@pytest.fixture
def client(agent: _core.SegmentAgent) -> Iterator[_core.SegmentClient]:
    made = _core.SegmentClient(agent.fd())
    yield made
    made.close()


def test_reads_by_copy(agent: _core.SegmentAgent, client: _core.SegmentClient) -> None:
    at = put(agent, DATA)
    buffer = bytearray(len(DATA) + 1)
    assert client.read_one(at.slot, at.generation, buffer) == len(DATA)
    assert buffer[:-1] == DATA
    assert client.read_bytes(at.slot, at.generation) == DATA
    part = np.zeros(3, np.uint8)
    assert client.read_range(at.slot, at.generation, 5, part) == 3
    assert part.tolist() == [5, 6, 7]


def test_a_batch_answers_per_key(agent: _core.SegmentAgent, client: _core.SegmentClient) -> None:
    one, two = put(agent, b"one"), put(agent, b"second")
    slots = np.array([one.slot, two.slot, one.slot], np.uint32)
    generations = np.array([one.generation, two.generation, 99], np.uint64)
    buffers = [bytearray(6), bytearray(5), bytearray(6)]
    status, sizes = client.read_into(slots, generations, buffers)
    assert status.tolist() == [OK, BOUNDS, MOVED]
    assert sizes.tolist() == [3, 0, 0]
    assert (bytes(buffers[0][:3]), bytes(buffers[1])) == (b"one", bytes(5))
    with pytest.raises(ValueError, match="buffers has 2 entries, expected 3"):
        client.read_into(slots, generations, buffers[:2])


def test_read_only_buffers_are_refused(
    agent: _core.SegmentAgent, client: _core.SegmentClient
) -> None:
    at = put(agent, DATA)
    with pytest.raises(BufferError):
        client.read_one(at.slot, at.generation, bytes(len(DATA)))


def test_writes_go_to_the_own_claims(
    agent: _core.SegmentAgent, client: _core.SegmentClient
) -> None:
    at = claim(agent, len(DATA), writer=client)
    status, crc = client.write(at.slots, at.generations, [DATA])
    assert (status[0], crc[0]) == (OK, _core.crc32c(DATA))
    assert seal(agent, at, int(crc[0])) == OK
    assert client.read_bytes(at.slot, at.generation) == DATA
    foreign = claim(agent, len(DATA))
    assert client.write(foreign.slots, foreign.generations, [DATA])[0][0] == REFUSED


def test_layers_are_written_one_by_one(
    agent: _core.SegmentAgent, client: _core.SegmentClient
) -> None:
    at = claim(agent, 8, writer=client)
    assert client.write_range(at.slot, at.generation, 4, b"5678") == OK
    assert client.write_range(at.slot, at.generation, 0, b"1234") == OK
    assert client.write_range(at.slot, at.generation, 5, b"5678") == BOUNDS
    status, crc = client.checksum(at.slot, at.generation)
    assert (status, crc) == (OK, _core.crc32c(b"12345678"))
    assert seal(agent, at, crc) == OK
    assert client.read_bytes(at.slot, at.generation) == b"12345678"


def test_corruption_is_seen_when_asked_for(
    agent: _core.SegmentAgent, client: _core.SegmentClient
) -> None:
    at = claim(agent, 4)
    agent.write(at.slot, at.generation, 0, b"data")
    seal(agent, at, crc=1)
    assert client.read_bytes(at.slot, at.generation) == failed(CORRUPT)
    assert client.read_bytes(at.slot, at.generation, verify=False) == b"data"
    assert client.pin(at.slot, at.generation, verify=True) == failed(CORRUPT)


def test_nothing_is_read_after_valid_until(
    agent: _core.SegmentAgent, client: _core.SegmentClient
) -> None:
    at = put(agent, DATA)
    agent.set_valid_until(1)
    assert client.read_bytes(at.slot, at.generation) == failed(EXPIRED)
    assert client.pin(at.slot, at.generation) == failed(EXPIRED)


def pinned(client: _core.SegmentClient, slot: int, generation: int) -> _core.SegmentView:
    view = client.pin(slot, generation)
    assert isinstance(view, _core.SegmentView)
    return view


def test_a_view_keeps_its_bytes(agent: _core.SegmentAgent, client: _core.SegmentClient) -> None:
    at = put(agent, DATA)
    with pinned(client, *at) as view, memoryview(view) as memory:
        assert memory.readonly
        assert len(view) == memory.nbytes == len(DATA)
        assert retire(agent, at) == OK
        assert agent.drain() == 0
        assert client.pin(*at) == failed(MOVED)
        assert memory == DATA
    assert agent.drain() == 1


def test_a_view_is_not_released_under_its_buffers(
    agent: _core.SegmentAgent, client: _core.SegmentClient
) -> None:
    view = pinned(client, *put(agent, DATA))
    array = np.frombuffer(memoryview(view), np.uint8)
    with pytest.raises(BufferError, match="1 buffers"):
        view.release()
    with pytest.raises(BufferError, match="1 views"):
        client.close()
    del array
    view.release()
    view.release()
    assert view.released
    with pytest.raises(BufferError, match="released"):
        memoryview(view)


def test_a_pin_lives_as_long_as_a_buffer(
    agent: _core.SegmentAgent, client: _core.SegmentClient
) -> None:
    array = np.frombuffer(memoryview(pinned(client, *put(agent, DATA))), np.uint8)
    assert agent.usage()["pins"] == client.pins == 1
    assert array.tobytes() == DATA
    del array
    assert agent.usage()["pins"] == client.pins == 0


def test_a_closed_client_says_so(agent: _core.SegmentAgent) -> None:
    client = _core.SegmentClient(agent.fd())
    client.close()
    client.close()
    with pytest.raises(_core.SegmentClosed, match="client is closed"):
        client.read_bytes(0, 1)


def test_rows_run_out(agent: _core.SegmentAgent) -> None:
    clients = [_core.SegmentClient(agent.fd()) for _ in range(agent.rows)]
    with pytest.raises(_core.SegmentFull, match="client rows"):
        _core.SegmentClient(agent.fd())
    for client in clients:
        client.close()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="segment"):
        _core.SegmentClient(str(tmp_path / "nothing"))


def test_a_forked_child_may_not_use_it(agent: _core.SegmentAgent) -> None:
    client = _core.SegmentClient(agent.fd())
    at = put(agent, DATA)
    view = pinned(client, *at)
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (lambda: client.read_bytes(*at), agent.usage, lambda: client.pin(*at)):
            try:
                use()
            except _core.SegmentClosed:
                refused += 1
        try:
            memoryview(view)
        except BufferError:
            refused += 1
        del view
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    assert agent.usage()["pins"] == 1  # the child's end took no pin of its parent
    view.release()
    assert client.read_bytes(*at) == DATA
    client.close()


def test_without_crc_the_second_look_alone_keeps_mixed_bytes_out() -> None:
    """One slot's memory is reused over and over while it is read with `verify=False`."""
    size, until_s = 4 << 20, time.monotonic() + 60
    with memory_agent(capacity_bytes=size + (1 << 16), slots=2) as agent:
        client, writer = (_core.SegmentClient(agent.fd()) for _ in range(2))
        newest, done = [put(agent, bytes(size))], threading.Event()

        def reuse() -> None:
            for stamp in itertools.cycle(range(256)):
                if done.wait(0.001 * (stamp % 5)):
                    return
                retire(agent, newest[0])
                at = claim(agent, size, writer=writer)
                writer.write(at.slots, at.generations, [bytes([stamp]) * size])
                assert seal(agent, at) == OK
                newest[0] = at

        thread = threading.Thread(target=reuse)
        thread.start()
        whole = mixed = moved = 0
        buffer = np.empty(size, np.uint8)
        while (whole < 20 or moved < 20) and not mixed and time.monotonic() < until_s:
            at = newest[0]
            if client.read_one(at.slot, at.generation, buffer, verify=False) == size:
                same = bool(buffer.min() == buffer.max())
                whole, mixed = whole + same, mixed + (not same)
            else:
                moved += 1
        done.set()
        thread.join()
        client.close()
        writer.close()
    assert (mixed, whole >= 20, moved >= 20) == (0, True, True), (mixed, whole, moved)
