"""A tier's server and the port that clients have to it, over a real socket."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from moonpool.core.clock import Deadline, SystemClock
from moonpool.core.stream import FrameStream
from moonpool.core.wire import Kind
from moonpool.pool import messages_tier
from moonpool.pool.port_tier import TierPort
from moonpool.pool.ports import AbortCall, Outcome, ReadCall, ReadRangeCall, Status
from moonpool.pool.tier_server import TierServer
from moonpool.pool.tiers.agent import TierAgent
from moonpool.pool.tiers.base import Entry, Finished, Read, TierOp
from tests.pool.tiers.disk_rig import made, opened
from tests.pool.tiers.test_tier_agent import ME, TERM

TOKEN = "a token of the cluster"
WAIT_S = 20.0


class Served:
    """A server in a thread of its own; reads are done at once, where they are asked for."""

    def __init__(self, path: Path) -> None:
        self.agent = TierAgent(opened(path), 1 << 22, 64)
        self.agent.raise_term(TERM, ME)
        self.agent.set_valid_until(2**62)
        self.full = self.spoil = False
        self.after_read: Callable[[], object] = bool
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.server = TierServer(self.agent, self._submit, TOKEN, SystemClock())
        self.address = self._run(self.server.start("127.0.0.1"))
        self.port = TierPort(self.address, TOKEN, self.agent.incarnation, "n")

    def _run(self, work: object) -> str:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)  # type: ignore[arg-type]

    def _submit(self, op: TierOp) -> "asyncio.Future[Finished] | None":
        if self.full:
            return None
        future: asyncio.Future[Finished] = self._loop.create_future()
        assert isinstance(op, Read)
        data = self.agent.store.read(*op)
        self.after_read()
        if self.spoil:
            data = bytes(1) + bytes(data)[1:]
        bad = isinstance(data, Status)
        future.set_result(Finished(1, data, None) if bad else Finished(1, Status.OK, data))
        return future

    def keep(self, number: int, size: int = 1000) -> tuple[Entry, bytes]:
        entry, data = made(number, size=size)
        claimed = self.agent.claim(entry, TERM, 1000)
        assert isinstance(claimed, Entry)
        assert self.agent.store.write(claimed, data) is Status.OK
        assert self.agent.seal(claimed, TERM) is Status.OK
        return claimed, data

    def read(self, *entries: Entry, room: int = 1000) -> tuple[Outcome, list[bytes]]:
        buffers = [bytearray(room) for _ in entries]
        call = ReadCall(
            np.array([one.slot for one in entries], np.uint32),
            np.array([one.generation for one in entries], np.uint64),
            buffers,
            True,
        )
        outcome = self.port.start(call, WAIT_S)()
        return outcome, [bytes(one) for one in buffers]

    async def _end(self) -> None:
        self.server.stop()
        while self.server.connections:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)

    def close(self) -> None:
        self.port.close()
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.agent.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.close()


def test_whole_objects_and_ranges(served: Served) -> None:
    first, one = served.keep(1)
    second, two = served.keep(2, size=700)
    outcome, data = served.read(first, second)
    assert outcome.status.tolist() == [0, 0] and outcome.sizes.tolist() == [1000, 700]
    assert (data[0], data[1][:700]) == (one, two)
    buffer = bytearray(50)
    call = ReadRangeCall(
        np.array([first.slot], np.uint32),
        np.array([first.generation], np.uint64),
        np.array([900], np.uint64),
        [buffer],
    )
    assert served.port.start(call, WAIT_S)().status.tolist() == [0]
    assert bytes(buffer) == one[900:950]
    beyond = ReadRangeCall(call.slots, call.generations, np.array([960], np.uint64), [buffer])
    assert served.port.start(beyond, WAIT_S)().status.tolist() == [Status.BOUNDS]


def test_a_large_object_comes_in_pieces(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("moonpool.pool.port_tier", "moonpool.pool.tier_server"):
        monkeypatch.setattr(f"{module}.PIECE_BYTES_MAX", 10_000)
        monkeypatch.setattr(f"{module}.ANSWER_BYTES_MAX", 25_000)
    big, data = served.keep(1, size=99_999)
    small, other = served.keep(2)
    outcome, (one, two, three) = served.read(big, small, big, room=100_000)
    assert outcome.status.tolist() == [0, 0, 0]
    assert (one[:99_999], two[:1000], three[:99_999]) == (data, other, data)


def test_an_object_larger_than_its_buffer_is_bounds(served: Served) -> None:
    entry, _ = served.keep(1)
    outcome, _ = served.read(entry, room=999)
    assert outcome.status.tolist() == [Status.BOUNDS]


def test_what_is_removed_while_it_is_read_is_not_answered(served: Served) -> None:
    entry, _ = served.keep(1)
    slots, generations = np.array([entry.slot], np.uint32), np.array([entry.generation], np.uint64)
    served.after_read = lambda: served.agent.retire(slots, generations, TERM)
    outcome, _ = served.read(entry)
    assert outcome.status.tolist() == [Status.MOVED]


def test_bytes_changed_on_the_way_are_found_at_this_end(served: Served) -> None:
    entry, _ = served.keep(1)
    served.spoil = True
    assert served.read(entry)[0].status.tolist() == [Status.CORRUPT]


def test_a_full_queue_is_busy_and_the_next_read_goes_on(served: Served) -> None:
    entry, data = served.keep(1)
    served.full = True
    assert served.read(entry)[0].status.tolist() == [Status.BUSY]
    served.full = False
    assert served.read(entry)[1] == [data]


def test_nothing_is_written_through_this_door(served: Served) -> None:
    call = AbortCall(np.zeros(1, np.uint32), np.zeros(1, np.uint64))
    assert served.port.start(call, WAIT_S)().status.tolist() == [Status.REFUSED]


def test_a_wrong_token_and_a_server_that_is_gone_are_unreachable(served: Served) -> None:
    entry, _ = served.keep(1)
    right, served.port = served.port, TierPort(served.address, "wrong", b"", "n")
    outcome, _ = served.read(entry)
    assert outcome.status.tolist() == [Status.UNREACHABLE] and "token" in outcome.text
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
    served.port = TierPort(address, TOKEN, b"", "n")
    assert served.read(entry)[0].status.tolist() == [Status.UNREACHABLE]
    served.port = right


def talk(served: Served, *frames: tuple[Kind, bytes]) -> bool:
    """Whether the server still listens after a client that proved itself sent these."""
    clock = SystemClock()
    deadline = Deadline.after(clock.monotonic(), WAIT_S)
    stream: FrameStream = served.port._take(deadline)
    try:
        for kind, payload in frames:
            stream.send(kind, payload, deadline)
        stream.recv(deadline)
    except (OSError, Exception):
        return False
    finally:
        stream.close()
    return True


def test_bad_input_costs_the_connection_only(served: Served) -> None:
    entry, data = served.keep(1)
    good = messages_tier.encode(messages_tier.TierRead(1, bytes(4), bytes(8), bytes(8), bytes(8)))
    huge = np.array([2**63], np.uint64).tobytes()
    uneven = messages_tier.encode(messages_tier.TierRead(1, bytes(8), bytes(8), bytes(8), bytes(8)))
    many = 5000
    crowd = messages_tier.encode(
        messages_tier.TierRead(1, bytes(4 * many), bytes(8 * many), bytes(8 * many), huge * many)
    )
    assert talk(served, (Kind.MESSAGE, good))
    for frame in (
        (Kind.MESSAGE, b"\xc1"),
        (Kind.HELLO, good),
        (Kind.MESSAGE, uneven),
        (Kind.MESSAGE, crowd),
        (Kind.MESSAGE, messages_tier.encode(messages_tier.TierPieces(1, *[b""] * 5))),
    ):
        assert not talk(served, frame)
    assert served.read(entry)[1] == [data]


def test_a_client_that_takes_no_answer_is_cut_off(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonpool.pool.tier_server.ANSWER_BYTES_MAX", 1 << 20)
    entry, _ = served.keep(1, size=1 << 20)
    columns = (np.array([n], np.uint64).tobytes() for n in (entry.generation, 0, entry.size))
    slot = np.array([entry.slot], np.uint32).tobytes()
    ask = messages_tier.encode(messages_tier.TierRead(1, slot, *columns))
    clock = SystemClock()
    deadline = Deadline.after(clock.monotonic(), WAIT_S)
    stream = served.port._take(deadline)
    asked = 0
    try:
        while served.server.connections and asked < 64:  # more than sockets hold
            stream.send(Kind.MESSAGE, ask, deadline)
            asked += 1
            while served.server.reads < asked and served.server.connections:
                deadline.check(clock.monotonic(), "wait for an answer")
                time.sleep(0.001)
    except ConnectionError:
        pass  # the server has hung up
    finally:
        stream.close()
    assert 1 < asked < 64
