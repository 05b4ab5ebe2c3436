"""Objects of attached segments over the wire: claims, puts, reads, and what becomes of them."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from moonpool import _core
from moonpool.pool.ports import CLAIM_DTYPE
from tests.transfer.endpoints import Bytes, done, random_bytes, u64

OK, MOVED, CORRUPT, BOUNDS, NO_SPACE, STALE_TERM, NOT_FOUND = 0, 1, 2, 3, 4, 6, 11
REFUSED = 9
WHOLE = 2**64 - 1


class World(NamedTuple):
    agent: _core.SegmentAgent
    server: _core.Endpoint
    client: _core.Endpoint
    connection: _core.Connection
    unix: str

    @property
    def incarnation(self) -> bytes:
        return self.agent.incarnation


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    agent = _core.SegmentAgent.create(None, 4 << 20, 1 << 20, 64)
    server, client = _core.Endpoint(token=b"t", stall_ms=100), _core.Endpoint(token=b"t")
    server.attach(agent)
    path = str(tmp_path / "s")
    server.listen_unix(path)
    connection = client.connect(f"127.0.0.1:{server.listen_tcp()}")
    yield World(agent, server, client, connection, f"unix:{path}")
    client.close()
    server.close()
    assert agent.usage()["writing"] == 0
    agent.close()  # BufferError if a window were left open


def u32(*values: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array(values, dtype=np.uint32)


def claims(*sizes: int, first_seq: int = 1) -> tuple[np.ndarray[tuple[int], np.dtype], bytes]:
    keys = [b"key %d" % (first_seq + i) for i in range(len(sizes))]
    records = np.zeros(len(sizes), CLAIM_DTYPE)
    records["size"] = sizes
    records["sequence"] = np.arange(first_seq, first_seq + len(sizes))
    records["key_len"] = [len(key) for key in keys]
    records["replicas"] = 1
    return records, b"".join(keys)


def put(world: World, *values: Bytes, first_seq: int = 1) -> _core.Op:
    records, blob = claims(*(len(value) for value in values), first_seq=first_seq)
    return done(world.connection.put_objects(world.incarnation, records, blob, 0, values))


def read(world: World, op: _core.Op, sizes: list[int]) -> tuple[_core.Op, list[Bytes]]:
    rooms = [np.zeros(size, np.uint8) for size in sizes]
    count = len(sizes)
    reads = world.connection.read_objects(
        world.incarnation,
        op.slots[:count],
        op.generations[:count],
        u64(*[0] * count),
        u64(*[WHOLE] * count),
        rooms,
    )
    return done(reads), rooms


def test_put_then_read(world: World) -> None:
    values = [random_bytes(size, size) for size in (0, 1, 4096, 100_000, (1 << 20) + 7)]
    op = put(world, *values)
    assert op.ok and op.sizes.tolist() == [len(value) for value in values]
    assert op.crcs.tolist() == [_core.crc32c(value) for value in values]
    assert world.agent.usage()["sealed"] == 5
    reads, rooms = read(world, op, [2_000_000] * 5)
    assert reads.ok and reads.sizes.tolist() == op.sizes.tolist()
    assert reads.crcs.tolist() == op.crcs.tolist()
    for room, value in zip(rooms, values, strict=True):
        assert (room[: len(value)] == value).all() and (room[len(value) :] == 0).all()


def test_an_object_in_several_extents(world: World) -> None:
    holes = put(world, *[random_bytes(500_000)] * 8)
    assert holes.ok
    world.agent.retire(holes.slots[::2].copy(), holes.generations[::2].copy(), 0)
    value = random_bytes(1_900_000, 5)
    op = put(world, value, first_seq=100)
    assert op.ok
    reads, (room,) = read(world, op, [len(value)])
    assert reads.ok and (room == value).all()
    part = np.zeros(700_000, np.uint8)
    where = (u64(400_001), u64(700_000))
    ranged = world.connection.read_objects(
        world.incarnation, op.slots, op.generations, *where, [part]
    )
    assert done(ranged).ok and (part == value[400_001:1_100_001]).all()
    assert ranged.crcs[0] == _core.crc32c(part)


def test_ranges_and_wholes_in_one_batch(world: World) -> None:
    value = random_bytes(1000)
    op = put(world, value)
    slots, generations = np.repeat(op.slots, 4), np.repeat(op.generations, 4)
    rooms = [bytearray(n) for n in (10, 1000, 500, 10)]
    offsets, lengths = u64(990, 0, 500, 995), u64(10, WHOLE, WHOLE, 10)
    reads = world.connection.read_objects(
        world.incarnation, slots, generations, offsets, lengths, rooms
    )
    assert done(reads).status.tolist() == [OK, OK, OK, BOUNDS]
    # A range ends the object: its CRC is not the object's.
    assert bytes(rooms[0]) == value[990:].tobytes() and bytes(rooms[1]) == value.tobytes()
    assert bytes(rooms[2]) == value[500:].tobytes()


def test_a_room_that_is_too_small(world: World) -> None:
    op = put(world, random_bytes(1000))
    reads, (room,) = read(world, op, [999])
    assert reads.status.tolist() == [BOUNDS] and reads.sizes.tolist() == [1000]
    assert not room.any()


def test_a_moved_slot(world: World) -> None:
    op = put(world, random_bytes(100), random_bytes(200))
    world.agent.retire(op.slots[:1].copy(), op.generations[:1].copy(), 0)
    reads, rooms = read(world, op, [100, 200])
    assert reads.status.tolist() == [MOVED, OK] and not rooms[0].any() and rooms[1].any()


def test_a_corrupt_object(world: World) -> None:
    records, blob = claims(100)
    claimed = done(world.connection.claim(world.incarnation, records, blob, 0))
    crc = u32(1)
    sealed = world.connection.seal(world.incarnation, claimed.slots, claimed.generations, crc, 0, 0)
    assert done(sealed).ok
    reads, _ = read(world, claimed, [100])
    assert reads.status.tolist() == [CORRUPT]


def test_claim_write_seal(world: World) -> None:
    records, blob = claims(3000)
    claimed = done(world.connection.claim(world.incarnation, records, blob, 0))
    value = random_bytes(3000)
    target = (int(claimed.slots[0]), int(claimed.generations[0]))
    for start in (2000, 0, 1000):
        piece = value[start : start + 1000]
        op = world.connection.write_object(world.incarnation, *target, start, piece)
        assert done(op).ok and op.crcs[0] == _core.crc32c(piece)
    beyond = world.connection.write_object(world.incarnation, *target, 2999, b"xx")
    assert done(beyond).status.tolist() == [BOUNDS]
    sealed = world.connection.seal(
        world.incarnation, claimed.slots, claimed.generations, u32(0), 1, 0
    )
    assert done(sealed).ok
    reads, (room,) = read(world, claimed, [3000])
    assert reads.ok and (room == value).all()
    late = world.connection.write_object(world.incarnation, *target, 0, b"x")
    assert done(late).status.tolist() == [MOVED]


def test_abort(world: World) -> None:
    records, blob = claims(3000)
    claimed = done(world.connection.claim(world.incarnation, records, blob, 0))
    assert world.agent.usage()["writing"] == 1
    op = world.connection.abort(world.incarnation, claimed.slots, claimed.generations)
    assert done(op).ok
    assert world.agent.usage()["writing"] == 0


def test_claims_of_a_connection_end_with_it(world: World) -> None:
    records, blob = claims(3000, 100)
    other = world.client.connect(world.unix)
    assert done(other.claim(world.incarnation, records, blob, 0)).ok
    assert world.agent.usage()["writing"] == 2
    other.close()
    while world.agent.usage()["writing"]:
        time.sleep(0.005)


def test_claims_of_a_dead_row_are_refused(world: World) -> None:
    records, blob = claims(3000)
    op = done(world.connection.claim(world.incarnation, records, blob, 0, 3, 77))
    assert op.status.tolist() == [REFUSED]


def test_a_full_segment_takes_what_fits(world: World) -> None:
    value = random_bytes(2 << 20)
    op = put(world, value, value, value, value[:1000])
    assert op.status.tolist() == [OK, OK, NO_SPACE, OK]
    reads, rooms = read(world, op, [len(value)])
    assert reads.ok and (rooms[0] == value).all()
    assert world.agent.usage()["sealed"] == 3


def test_an_old_term_writes_nothing(world: World) -> None:
    assert world.agent.raise_term(5, bytes(16))
    assert put(world, random_bytes(100)).status.tolist() == [STALE_TERM]
    assert world.agent.usage()["sealed"] == 0


def test_unknown_segments_and_slots(world: World) -> None:
    room = [bytearray(10)]
    nowhere = world.connection.read_objects(bytes(16), u32(0), u64(1), u64(0), u64(WHOLE), room)
    assert done(nowhere).status.tolist() == [NOT_FOUND]
    op = world.connection.read_objects(
        world.incarnation, u32(2**32 - 1), u64(2**61), u64(0), u64(WHOLE), room
    )
    assert done(op).status.tolist() == [NOT_FOUND]
    records, blob = claims(10)
    op = world.connection.put_objects(bytes(16), records, blob, 0, [bytes(10)])
    assert done(op).status.tolist() == [NOT_FOUND]
    assert done(world.connection.ping()).ok


def test_detach(world: World) -> None:
    op = put(world, random_bytes(100))
    records, blob = claims(10, first_seq=9)
    assert done(world.connection.claim(world.incarnation, records, blob, 0)).ok
    world.server.detach(world.agent)
    assert world.agent.usage()["writing"] == 0
    assert read(world, op, [100])[0].status.tolist() == [NOT_FOUND]
    with pytest.raises(KeyError):
        world.server.detach(world.agent)
    world.server.attach(world.agent)
    with pytest.raises(ValueError, match="already"):
        world.server.attach(world.agent)
    assert read(world, op, [100])[0].ok


def test_a_closed_agent_is_a_segment_not_found(tmp_path: Path) -> None:
    agent = _core.SegmentAgent.create(None, 1 << 20, 1 << 16, 8)
    server, client = _core.Endpoint(), _core.Endpoint()
    server.attach(agent)
    connection = client.connect(f"127.0.0.1:{server.listen_tcp()}")
    assert connection.segments[0]["incarnation"] == agent.incarnation
    incarnation = agent.incarnation
    agent.close()
    records, blob = claims(10)
    op = done(connection.put_objects(incarnation, records, blob, 0, [bytes(10)]))
    assert op.status.tolist() == [NOT_FOUND]
    client.close()
    server.close()


def test_lists_that_do_not_fit_together(world: World) -> None:
    records, blob = claims(10, 20)
    call = world.connection.put_objects
    with pytest.raises(ValueError, match="its source has 11"):
        call(world.incarnation, records, blob, 0, [bytes(10), bytes(11)])
    with pytest.raises(ValueError, match="sources has 1"):
        call(world.incarnation, records, blob, 0, [bytes(10)])
    with pytest.raises(ValueError, match="blob"):
        call(world.incarnation, records, blob + b"x", 0, [bytes(10), bytes(20)])
    with pytest.raises(ValueError, match="48 bytes"):
        call(world.incarnation, bytes(47), b"", 0, [])
    with pytest.raises(ValueError, match="16 bytes"):
        call(b"short", records, blob, 0, [bytes(10), bytes(20)])
    with pytest.raises(ValueError, match="does not fit"):
        world.connection.read_objects(
            world.incarnation, u32(1), u64(1), u64(0), u64(11), [bytearray(10)]
        )


def test_a_put_cut_in_the_middle_leaves_nothing(world: World) -> None:
    from tests.transfer import wire

    client = wire.WireClient(int(world.connection.address.split(":")[1]), b"t")
    records, blob = claims(1000, 1000)
    meta = bytes([255] * 4 + [0] * 12) + records.tobytes() + blob
    client.send(
        wire.frame(wire.PUT_OBJECTS, meta, count=2, payload_bytes=2000, target=world.incarnation)
        + bytes(1500)
    )
    while world.agent.usage()["writing"] != 2:
        time.sleep(0.005)
    client.close()
    while world.agent.usage()["writing"]:
        time.sleep(0.005)
    usage = world.agent.usage()
    assert usage["sealed"] == 0
    world.agent.drain()
    assert world.agent.usage()["free_slots"] == 64


def test_a_put_whose_reservation_expires_goes_to_the_sink(world: World) -> None:
    from tests.transfer import wire

    client = wire.WireClient(int(world.connection.address.split(":")[1]), b"t")
    records, blob = claims(1000, 10)
    meta = bytes([255] * 4 + [0] * 12) + records.tobytes() + blob
    data = wire.frame(wire.PUT_OBJECTS, meta, count=2, payload_bytes=1010, target=world.incarnation)
    client.send(data + bytes(500))
    while world.agent.usage()["writing"] != 2:
        time.sleep(0.005)
    assert world.agent.expire(u64(0), u64(1)) == 1
    crcs = bytes(8)
    client.send(bytes(510) + crcs + _core.crc32c(crcs).to_bytes(4, "little"))
    reply = wire.receive_frame(client.sock)
    answer = wire.receive(client.sock, 32 * reply.blocks + 8)
    assert (answer[0], answer[32]) == (MOVED, OK)
    client.close()
    world.agent.drain()
    assert world.agent.usage()["free_slots"] == 63


BAD_META = {
    "no writer": bytes(8),
    "no records": bytes(16),
    "keys missing": bytes(16) + claims(10)[0].tobytes(),
    "sizes are not the payload": bytes(16) + claims(11)[0].tobytes() + claims(11)[1],
    "sizes past u64": bytes(16) + claims(2**64 - 1)[0].tobytes() + claims(1)[1],
}


@pytest.mark.parametrize("meta", BAD_META.values(), ids=BAD_META)
def test_puts_that_break_the_protocol(world: World, meta: bytes) -> None:
    from tests.transfer import wire

    client = wire.WireClient(int(world.connection.address.split(":")[1]), b"t")
    client.send(
        wire.frame(wire.PUT_OBJECTS, meta, count=1, payload_bytes=10, target=world.incarnation)
    )
    assert client.is_closed()
    assert world.agent.usage()["free_slots"] == 64
    assert done(world.connection.ping()).ok
