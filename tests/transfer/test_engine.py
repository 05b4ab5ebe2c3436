"""The engine's own rules, with two engines in one process; other processes: test_processes.py."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moonpool.core.errors import (
    BadConfig,
    BadInput,
    Closed,
    DeadlineExceeded,
    Refused,
    SegmentSpace,
    Unreachable,
)
from moonpool.core.sections import TransferConfig
from moonpool.transfer.base import BlockStatus, OpResult, OpState
from moonpool.transfer.engine import Engine
from moonpool.transfer.op import Op
from moonpool.transfer.peer import Peer
from moonpool.transfer.segment import RemoteSegment, Segment
from moonpool.transfer.tcp import FRAME_BLOCKS
from tests.transfer.conftest import stamped

KIB = 1024


class Pair(NamedTuple):
    """`theirs` belongs to `owner`, `far` is how `engine` sees it, `near` is private to `engine`."""

    owner: Engine
    engine: Engine
    peer: Peer
    theirs: Segment
    far: RemoteSegment
    near: Segment


@pytest.fixture
def pair(folder: str) -> Iterator[Pair]:
    with Engine(dir=folder) as owner, Engine(dir=folder) as engine:
        theirs = owner.allocate(64 * KIB, "kv")
        theirs.array[:] = stamped(64 * KIB, 7)
        peer = engine.connect(owner.listen())
        yield Pair(owner, engine, peer, theirs, peer.segment("kv"), engine.allocate(64 * KIB))


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
@pytest.mark.parametrize("kind", ["read", "write"])
def test_each_transport_moves_the_same_bytes(pair: Pair, transport: str, kind: str) -> None:
    pair.near.array[:] = stamped(64 * KIB, 8)
    src, dst = (pair.theirs, pair.near) if kind == "read" else (pair.near, pair.theirs)
    want = dst.array.copy()
    want[5 * KIB : 6 * KIB] = src.array[9 * KIB : 10 * KIB]
    ends = (pair.near.blocks(KIB), 5, pair.far.blocks(KIB), 9)
    if kind == "read":
        op = pair.engine.read(*ends, transport=transport)
    else:
        op = pair.engine.write(
            pair.near.blocks(KIB), 9, pair.far.blocks(KIB), 5, transport=transport
        )
    assert op.wait() and op.check().transport == transport
    assert np.array_equal(dst.array, want)


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_no_blocks_and_empty_blocks(pair: Pair, transport: str) -> None:
    none = pair.engine.read(pair.near.blocks(8), [], pair.far.blocks(8), [], transport=transport)
    empty = pair.engine.read(pair.near, (64 * KIB, 0), pair.far, (0, 0), transport=transport)
    for op in (none, empty):
        assert op.wait() and op.result.ok and op.result.nbytes == 0
    assert not pair.near.array.any()


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_more_blocks_than_a_frame_holds(pair: Pair, transport: str) -> None:
    ids = np.arange(FRAME_BLOCKS + 10) % (64 * KIB)
    far = pair.engine.connect(pair.owner.address).segment("kv")
    near = pair.engine.allocate(len(ids))
    op = pair.engine.read(near.blocks(1), None, far.blocks(1), ids, transport=transport)
    assert op.wait() and len(op.check().status) == len(ids)
    assert np.array_equal(near.array, pair.theirs.array[ids])


def test_engines_of_one_process_use_memcpy(pair: Pair) -> None:
    op = pair.engine.read(pair.near, None, pair.far, None)
    assert op.result.ok and op.transport == "local"
    assert [choice.transport for choice in pair.engine.explain(pair.far)] == ["local", "shm", "tcp"]


def test_own_segments_need_no_peer(pair: Pair) -> None:
    other = pair.engine.register(stamped(100, 5))
    assert pair.engine.read(pair.near, (0, 100), other, None).result.ok
    assert np.array_equal(pair.near.array[:100], other.array)
    assert pair.engine.explain(other)[0].why == "both ends are in this process"


def test_await(pair: Pair) -> None:
    async def main() -> list[OpResult]:
        ops = [
            pair.engine.read(pair.near.blocks(KIB), i, pair.far.blocks(KIB), i, transport="tcp")
            for i in range(64)
        ]
        return [await op for op in ops]

    assert all(result.ok for result in asyncio.run(main()))
    assert np.array_equal(pair.near.array, pair.theirs.array)


def test_callbacks_run_once(pair: Pair) -> None:
    seen: list[Op] = []
    op = pair.engine.read(pair.near, None, pair.far, None, transport="tcp")
    op.add_done_callback(seen.append)
    assert op.wait()
    op.add_done_callback(seen.append)
    while len(seen) < 2:
        op.wait(0.01)
    assert seen == [op, op]


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_a_passed_deadline_expires_before_anything_moves(pair: Pair, transport: str) -> None:
    op = pair.engine.read(pair.near, None, pair.far, None, deadline=0, transport=transport)
    assert op.wait() and op.state is OpState.EXPIRED and isinstance(op.error, DeadlineExceeded)
    assert not pair.near.array.any()


def test_checksums_are_of_the_destination_and_can_be_left_out(pair: Pair) -> None:
    for transport in ("local", "shm", "tcp"):
        op = pair.engine.read(pair.near, None, pair.far, None, transport=transport)
        assert op.wait()
        crc = op.result.crc
        assert crc is not None and crc.tolist() == [_crc(pair.theirs)], transport
        bare = pair.engine.read(
            pair.near, None, pair.far, None, transport=transport, checksum=False
        )
        assert bare.wait() and bare.check().crc is None


def _crc(segment: Segment) -> int:
    from moonpool import _core

    return _core.crc32c(segment.buffer)


def test_a_segment_the_peer_closed_is_not_found(pair: Pair) -> None:
    pair.theirs.close()
    op = pair.engine.read(pair.near, None, pair.far, None, transport="tcp")
    assert op.wait() and op.state is OpState.FAILED
    assert op.result.status.tolist() == [BlockStatus.NOT_FOUND]
    pair.peer.refresh()
    assert pair.peer.segments == {}


def test_a_closed_segment_takes_no_ops(pair: Pair) -> None:
    pair.near.close()
    with pytest.raises(Closed):
        pair.engine.read(pair.near, None, pair.far, None)


def test_a_closed_peer_fails_ops(pair: Pair) -> None:
    pair.peer.close()
    op = pair.engine.read(pair.near, None, pair.far, None)
    assert op.state is OpState.FAILED and isinstance(op.error, Closed)
    with pytest.raises(Closed):
        pair.peer.refresh()


def test_a_closed_engine_refuses(folder: str) -> None:
    engine = Engine(dir=folder)
    engine.close()
    engine.close()
    with pytest.raises(Closed):
        engine.allocate(1)
    with pytest.raises(Closed):
        engine.connect("127.0.0.1:1")
    with pytest.raises(Closed):
        engine.listen()


def test_closing_leaves_no_socket_file() -> None:
    with tempfile.TemporaryDirectory(prefix="mp-") as path, Engine(dir=path) as engine:
        engine.listen()
        assert len(os.listdir(path)) == 1
        engine.close()
        assert os.listdir(path) == []


def test_names_make_memory_visible(pair: Pair) -> None:
    pair.owner.allocate(10)
    pair.owner.register(bytearray(10))
    pair.owner.register(b"text", "text", writable=False)
    pair.peer.refresh()
    assert sorted(pair.peer.segments) == ["kv", "text"] == sorted(pair.owner.segments)


def test_layouts_are_published_by_name(pair: Pair) -> None:
    pair.theirs.blocks(100, stride=128, offset=8, name="rows")
    layout = pair.peer.layout("rows")
    assert (layout.block_bytes, layout.stride, layout.offset) == (100, 128, 8)
    assert layout.segment is pair.far
    with pytest.raises(BadInput, match="Did you mean 'rows'"):
        pair.peer.layout("row")


def test_too_many_layouts_are_refused(pair: Pair) -> None:
    with pytest.raises(BadInput, match="do not fit"):
        for number in range(1000):
            pair.theirs.blocks(8, name=f"{number:0200}")
    assert pair.peer.layout(f"{0:0200}").block_bytes == 8
    pair.owner.register(bytearray(8), "small").close()


def test_a_layout_name_is_of_one_segment(pair: Pair) -> None:
    pair.theirs.blocks(8, name="rows")
    other = pair.owner.allocate(80, "other")
    with pytest.raises(BadInput, match="'kv' publishes"):
        other.blocks(8, name="rows")
    pair.theirs.blocks(16, name="rows")
    assert pair.peer.layout("rows").block_bytes == 16


@pytest.mark.parametrize("name", ["kv", "moonpool.x", "n" * 300])
def test_taken_or_reserved_names_are_refused(pair: Pair, name: str) -> None:
    with pytest.raises(BadInput):
        pair.owner.allocate(8, name)
    with pytest.raises(BadInput):
        pair.owner.register(bytearray(8), name)


def test_memory_that_cannot_be_had_is_an_error(pair: Pair) -> None:
    with pytest.raises(SegmentSpace, match="free"):
        pair.owner.allocate(2**45, "huge")
    for size in (-1, 2**46, 1.5, True, "1"):
        with pytest.raises(BadInput):
            pair.owner.allocate(size, "odd")  # type: ignore[arg-type]


def test_unknown_options_are_errors() -> None:
    with pytest.raises(BadConfig, match="Did you mean 'deadline_ms'"):
        Engine(deadlin_ms=5)
    with pytest.raises(BadConfig):
        Engine(deadline_ms=0)
    with pytest.raises(BadConfig):
        Engine(TransferConfig(), deadline_ms=5)
    assert Engine(TransferConfig(deadline_ms=7)).config.deadline_ms == 7


def test_unknown_transports_are_errors(pair: Pair) -> None:
    with pytest.raises(BadInput, match="Did you mean 'shm'"):
        pair.engine.read(pair.near, None, pair.far, None, transport="shmm")


def test_other_machines_need_a_token(folder: str) -> None:
    with Engine(dir=folder) as engine, pytest.raises(BadConfig, match="token"):
        engine.listen("0.0.0.0")


def test_a_wrong_token_is_refused(folder: str) -> None:
    with Engine(dir=folder, token="a") as owner, Engine(dir=folder, token="b") as stranger:
        with pytest.raises(Refused):
            stranger.connect(owner.listen())
        with Engine(dir=folder, token="a") as friend:
            assert friend.connect(owner.address).alive


def test_nobody_there(folder: str) -> None:
    with Engine(dir=folder) as engine:
        with pytest.raises(Unreachable):
            engine.connect("127.0.0.1:1")
        with pytest.raises(Unreachable):
            engine.connect("unix:/nonexistent/socket")
        for address in ("", "7400", "host:0", "unix:relative"):
            with pytest.raises(BadInput):
                engine.connect(address)


def test_listening_twice_or_on_a_taken_port(pair: Pair, folder: str) -> None:
    with pytest.raises(BadInput, match="already"):
        pair.owner.listen()
    with Engine(dir=folder) as other, pytest.raises(Unreachable):
        other.listen(port=int(pair.owner.address.rpartition(":")[2]))


def test_buffers_that_are_too_small_are_refused(pair: Pair) -> None:
    small = pair.engine.register(bytearray(100))
    with pytest.raises(BadInput, match="equally long"):
        pair.engine.read(small, None, pair.far, None)
    with pytest.raises(BadInput, match="outside"):
        pair.engine.read(small, (0, 101), pair.far, (0, 101))
    with pytest.raises(BadInput, match="local blocks"):
        pair.engine.read(small, ([0, 1], [1, 1]), pair.far, (0, 1))


@pytest.mark.parametrize("kind", ["read", "write"])
def test_overlapping_destinations_are_refused(pair: Pair, kind: str) -> None:
    submit = pair.engine.read if kind == "read" else pair.engine.write
    apart = ([0, 100, 200], [100, 100, 100])
    for offsets, lengths in [([300, 0, 299], [9, 9, 9]), ([0, 0], [1, 1]), ([0, 7, 5], [9, 0, 1])]:
        source = (apart[0][: len(offsets)], lengths)
        ends = ((offsets, lengths), source) if kind == "read" else (source, (offsets, lengths))
        with pytest.raises(BadInput, match="overlap in their destination"):
            submit(pair.near, ends[0], pair.far, ends[1])
    # One source for many destinations is no overlap, and neither is a block of no bytes.
    twice, once = ([0, 0, 0], [9, 9, 0]), ([20, 0, 5], [9, 9, 0])
    ends = (once, twice) if kind == "read" else (twice, once)
    assert submit(pair.near, ends[0], pair.far, ends[1]).check().ok


def test_read_only_memory_is_no_destination(pair: Pair) -> None:
    frozen = pair.engine.register(b"0123", writable=False)
    with pytest.raises(BadInput, match="read-only"):
        pair.engine.read(frozen, None, pair.far, (0, 4))
    assert pair.engine.write(frozen, None, pair.far, (0, 4)).check().ok


def test_stats_count_ops_and_bytes(pair: Pair) -> None:
    for transport in ("local", "tcp"):
        pair.engine.read(pair.near, None, pair.far, None, transport=transport).wait()
    pair.engine.read(pair.near, None, pair.far, None, deadline=0)
    stats = pair.engine.stats()
    assert stats["ops"]["local"] == {"bytes": 64 * KIB, "DONE": 1, "EXPIRED": 1}
    assert stats["ops"]["tcp"] == {"bytes": 64 * KIB, "DONE": 1}
    assert (stats["peers"], stats["lost_peers"], stats["segments"]) == (1, 0, 0)
    assert stats["endpoint"]["bytes_in"] >= 64 * KIB


ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=3),
    st.booleans(),
    st.lists(st.integers(-3, 70_000), max_size=4),
    st.tuples(st.integers(-3, 70_000), st.integers(-3, 70_000)),
    st.tuples(
        st.lists(st.integers(-1, 2**64), max_size=3), st.lists(st.integers(-1, 2**64), max_size=3)
    ),
    st.builds(np.array, st.lists(st.floats(), max_size=3)),
    st.binary(max_size=4),
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_input_is_an_op_or_bad_input(pair: Pair, data: st.DataObject) -> None:
    near: Any = data.draw(st.sampled_from([pair.near, pair.near.blocks(100), pair.far, None, 5]))
    far: Any = data.draw(st.sampled_from([pair.far, pair.far.blocks(100), pair.near, "kv", b""]))
    near_ids, far_ids = data.draw(ODD), data.draw(ODD)
    options: dict[str, Any] = {}
    if data.draw(st.booleans()):
        options["deadline"] = data.draw(st.floats() | st.text(max_size=2) | st.booleans())
    call = pair.engine.read if data.draw(st.booleans()) else pair.engine.write
    try:
        op = call(near, near_ids, far, far_ids, **options)
    except BadInput:
        return
    assert op.wait() and op.state in (OpState.DONE, OpState.EXPIRED)


@pytest.mark.parametrize("port", [-1, 65536, "x", None])
def test_what_is_no_port(port: Any) -> None:
    with Engine() as engine, pytest.raises(BadInput, match="0 to 65535"):
        engine.listen(port=port)


@pytest.mark.parametrize("address", [None, 5, "", "x", "127.0.0.1:0"])
def test_what_is_no_address(address: Any) -> None:
    with Engine() as engine, pytest.raises(BadInput):
        engine.connect(address)


@pytest.mark.parametrize("name", ["\ud800", "x" * 10_000, 5])
def test_what_is_no_name(name: Any) -> None:
    with Engine() as engine, pytest.raises(BadInput, match="name"):
        engine.register(bytearray(8), name)
