"""The native endpoint: raw transfers, ops, shared regions, ends."""

import asyncio
import gc
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from moonpool import _core
from tests.transfer.endpoints import Bytes, Pair, connected, done, random_bytes, u64
from tests.transfer.wire import WireServer, until_closed

OK, BOUNDS, REFUSED, NOT_FOUND = 0, 3, 9, 11


@pytest.fixture
def pair() -> Iterator[Pair]:
    with connected() as made:
        yield made


def test_read_scatters_blocks_in_order(pair: Pair) -> None:
    source = random_bytes(100_000)
    region = pair.server.register(source, "source")
    target = np.zeros(1000, np.uint8)
    remote, lengths, local = u64(99_000, 0, 50_000), u64(300, 200, 500), u64(0, 800, 300)
    op = done(pair.connection.read_raw(region, remote, lengths, target, local))
    assert op.ok and op.state == "DONE" and op.status.tolist() == [OK] * 3
    expected = np.concatenate([source[99_000:99_300], source[50_000:50_500], source[:200]])
    assert (target == expected).all()
    assert op.crcs[1] == _core.crc32c(source[:200])


def test_write_gathers_blocks(pair: Pair) -> None:
    target = np.zeros(10_000, np.uint8)
    region = pair.server.register(target, "target", writable=True)
    source = random_bytes(3000)
    remote, lengths = u64(9000, 5), u64(1000, 2000)
    op = done(pair.connection.write_raw(region, remote, lengths, source, u64(0, 1000)))
    assert op.ok
    assert (target[9000:] == source[:1000]).all() and (target[5:2005] == source[1000:]).all()


@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 20, (16 << 20) + 3])
@pytest.mark.parametrize("checksum", [True, False])
def test_sizes(pair: Pair, size: int, checksum: bool) -> None:
    memory = random_bytes(size + 1)
    region = pair.server.register(memory, writable=True)
    copy = np.zeros(size + 1, np.uint8)
    done(pair.connection.read_raw(region, u64(1), u64(size), copy, u64(1), checksum=checksum))
    assert (copy[1:] == memory[1:]).all()
    copy[1:] ^= 0xFF
    done(pair.connection.write_raw(region, u64(1), u64(size), copy, u64(1), checksum=checksum))
    assert (copy[1:] == memory[1:]).all()


def test_a_batch_of_very_many_blocks(pair: Pair) -> None:
    memory = random_bytes(65_536)
    region = pair.server.register(memory)
    offsets = np.random.default_rng(2).permutation(65_536).astype(np.uint64)
    copy = np.zeros(65_536, np.uint8)
    op = done(pair.connection.read_raw(region, offsets, np.ones_like(offsets), copy, offsets))
    assert op.ok and (copy == memory).all()


def test_an_empty_batch(pair: Pair) -> None:
    region = pair.server.register(b"x")
    assert done(pair.connection.read_raw(region, u64(), u64(), bytearray(), u64())).ok


def test_blocks_fail_one_by_one(pair: Pair) -> None:
    memory = random_bytes(100)
    region = pair.server.register(memory)
    copy = np.zeros(30, np.uint8)
    remote, lengths = u64(95, 0, 2**64 - 1), u64(10, 10, 10)
    op = done(pair.connection.read_raw(region, remote, lengths, copy, u64(0, 10, 20)))
    assert op.state == "DONE" and not op.ok
    assert op.status.tolist() == [BOUNDS, OK, BOUNDS]
    assert (copy[10:20] == memory[:10]).all()


def test_read_only_and_unknown_regions(pair: Pair) -> None:
    region = pair.server.register(bytes(10))
    write = done(pair.connection.write_raw(region, u64(0), u64(5), bytes(5), u64(0)))
    assert write.status.tolist() == [REFUSED]
    read = done(pair.connection.read_raw(region + 1, u64(0), u64(5), bytearray(5), u64(0)))
    assert read.status.tolist() == [NOT_FOUND]


def test_local_bounds_are_errors_at_once(pair: Pair) -> None:
    with pytest.raises(ValueError, match="outside the local buffer"):
        pair.connection.read_raw(1, u64(0), u64(8), bytearray(10), u64(2**64 - 4))
    with pytest.raises(ValueError, match="one length"):
        pair.connection.read_raw(1, u64(0, 1), u64(8), bytearray(10), u64(0))
    with pytest.raises(BufferError):
        pair.connection.read_raw(1, u64(0), u64(8), bytes(10), u64(0))
    with pytest.raises(TypeError, match="uint64"):
        pair.connection.read_raw(1, np.zeros(1, np.int32), u64(8), bytearray(10), u64(0))


def test_unregistered_memory_is_gone(pair: Pair) -> None:
    memory = bytearray(100)
    region = pair.server.register(memory, "held", writable=True)
    with pytest.raises(BufferError):
        memory.clear()
    pair.server.unregister(region)
    memory.clear()
    op = done(pair.connection.read_raw(region, u64(0), u64(5), bytearray(5), u64(0)))
    assert op.status.tolist() == [NOT_FOUND]
    with pytest.raises(KeyError):
        pair.server.unregister(region)


def test_directory(pair: Pair) -> None:
    assert pair.connection.regions == []
    region = pair.server.register(bytes(10), "weights")
    pair.connection.refresh()
    assert pair.connection.regions == [
        {"id": region, "name": "weights", "nbytes": 10, "writable": False, "shared": False}
    ]
    assert pair.connection.peer_epoch == pair.server.epoch != pair.client.epoch
    assert pair.connection.alive and pair.connection.address == f"127.0.0.1:{pair.port}"


def test_ping_and_stats(pair: Pair) -> None:
    assert done(pair.connection.ping()).ok
    assert pair.client.stats()["ops_done"] == 1
    assert pair.server.stats()["requests_served"] == 1
    assert pair.server.stats()["connections_open"] == 1


def test_a_dropped_op_keeps_its_memory(pair: Pair) -> None:
    memory = random_bytes(8 << 20)
    region = pair.server.register(memory)
    copy = bytearray(8 << 20)
    pair.connection.read_raw(region, u64(0), u64(len(copy)), copy, u64(0))
    gc.collect()
    done(pair.connection.ping())
    pair.client.completed()
    copy.clear()  # would raise BufferError while the op still held it
    assert pair.client.stats()["ops_done"] == 2


def test_asyncio_completions(pair: Pair) -> None:
    region = pair.server.register(random_bytes(1000))

    async def main() -> set[int]:
        ready = asyncio.Event()
        asyncio.get_running_loop().add_reader(pair.client.completion_fd, ready.set)
        copy = bytearray(1000)
        ops = [pair.connection.read_raw(region, u64(0), u64(9), copy, u64(0)) for _ in range(20)]
        for op in ops:
            op.notify()
        seen: list[int] = []
        while len(seen) < len(ops):
            await asyncio.wait_for(ready.wait(), 20)
            ready.clear()
            seen += pair.client.completed()
        asyncio.get_running_loop().remove_reader(pair.client.completion_fd)
        assert sorted(seen) == [op.id for op in ops] and all(op.ok for op in ops)
        return set(seen)

    assert len(asyncio.run(main())) == 20


def test_wait_with_a_timeout_and_results_before_the_end() -> None:
    silent = WireServer(until_closed)
    client = _core.Endpoint(token=b"token")
    op = client.connect(silent.address).ping(deadline_ms=400)
    assert not op.wait(1) and op.state == "POSTED" and not op.terminal
    with pytest.raises(RuntimeError, match="POSTED"):
        _ = op.status
    assert op.wait() and op.state == "EXPIRED" and "deadline" in op.error
    client.close()
    silent.close()


def test_what_was_answered_in_time_has_not_expired_because_nobody_looked(pair: Pair) -> None:
    op = pair.connection.ping(deadline_ms=300)
    time.sleep(0.6)
    assert op.state == "DONE" and op.ok


def test_unix_socket_shares_regions(tmp_path: Path) -> None:
    server, client = _core.Endpoint(token=b"t"), _core.Endpoint(token=b"t")
    path = tmp_path / "endpoint"
    server.listen_unix(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    region = server.allocate(10_000, "shared", writable=True)
    memoryview(region)[:5] = b"hello"
    connection = client.connect(f"unix:{path}")
    mapped = connection.map_region(region.region)
    assert bytes(memoryview(mapped)[:5]) == b"hello" and mapped.nbytes == 10_000
    memoryview(mapped)[5:6] = b"!"
    copy = bytearray(6)
    assert done(connection.read_raw(region.region, u64(0), u64(6), copy, u64(0))).ok
    assert copy == b"hello!"
    client.close()
    server.close()
    assert not path.exists()
    assert bytes(memoryview(mapped)[:6]) == b"hello!"  # outlives the endpoints


def test_read_only_regions_are_mapped_read_only(tmp_path: Path) -> None:
    server, client = _core.Endpoint(), _core.Endpoint()
    server.listen_unix(str(tmp_path / "e"))
    private = server.register(bytes(10))
    region = server.allocate(100)
    connection = client.connect(f"unix:{tmp_path / 'e'}")
    assert memoryview(connection.map_region(region.region)).readonly
    with pytest.raises(ValueError, match="shares no region"):
        connection.map_region(private)
    client.close()
    server.close()


def test_a_stale_socket_file_is_replaced_a_living_one_is_not(tmp_path: Path) -> None:
    first, second = _core.Endpoint(), _core.Endpoint()
    first.listen_unix(str(tmp_path / "e"))
    with pytest.raises(OSError, match="cannot bind"):
        second.listen_unix(str(tmp_path / "e"))
    os.link(tmp_path / "e", tmp_path / "left")
    first.close()
    second.listen_unix(str(tmp_path / "left"))
    second.close()


def test_close_ends_ops_and_refuses_more(pair: Pair) -> None:
    region = pair.server.register(random_bytes(8 << 20))
    copy = bytearray(8 << 20)
    op = pair.connection.read_raw(region, u64(0), u64(len(copy)), copy, u64(0))
    pair.client.close()
    assert op.terminal and op.state in ("FAILED", "DONE")
    assert not pair.connection.alive
    with pytest.raises(_core.EndpointClosedError):
        pair.connection.ping()
    pair.client.close()


def test_a_closed_connection_fails_its_ops(pair: Pair) -> None:
    pair.connection.close()
    op = done(pair.connection.ping())
    assert op.state == "FAILED" and "closed" in op.error
    assert done(pair.client.connect(f"127.0.0.1:{pair.port}").ping()).ok


def test_a_fork_child_may_not_use_it(pair: Pair) -> None:
    script = """
import os, sys
from moonpool import _core
server, client = _core.Endpoint(), _core.Endpoint()
connection = client.connect("127.0.0.1:%d" % server.listen_tcp())
pid = os.fork()
if pid == 0:
    try:
        connection.ping()
    except _core.EndpointClosedError as error:
        ok = "after fork" in str(error)
    del connection, client, server
    os._exit(0 if ok else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert connection.ping().wait(5000)
"""
    assert os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", script) == 0


def test_options_are_checked() -> None:
    with pytest.raises(TypeError, match="unknown endpoint option 'turn_byte'"):
        _core.Endpoint(turn_byte=1)
    with pytest.raises(ValueError, match="ops_max must be at least 1"):
        _core.Endpoint(ops_max=0)
    with pytest.raises(ValueError, match="needs a token"):
        _core.Endpoint().listen_tcp("0.0.0.0")


def test_nobody_listens() -> None:
    endpoint = _core.Endpoint()
    with pytest.raises(ConnectionRefusedError, match="127.0.0.1:1"):
        endpoint.connect("127.0.0.1:1")
    with pytest.raises(ValueError, match="host:port"):
        endpoint.connect("nowhere")
    with pytest.raises(FileNotFoundError):
        endpoint.connect("unix:/nonexistent/socket")
    endpoint.close()


def test_threads_wait_on_one_connection_while_asyncio_does(pair: Pair) -> None:
    memory = random_bytes(300_000)
    region = pair.server.register(memory)
    copies = [np.zeros(len(memory), np.uint8) for _ in range(40)]

    def read(copy: Bytes) -> _core.Op:
        return pair.connection.read_raw(region, u64(0), u64(len(memory)), copy, u64(0))

    def read_all(copy: Bytes) -> bool:
        return done(read(copy)).ok

    async def main() -> None:
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(pair.client.completion_fd, ready.set)
        awaited = [read(copy) for copy in copies[:20]]
        for op in awaited:
            op.notify()
        blocking = [asyncio.to_thread(read_all, copy) for copy in copies[20:]]
        gathered = asyncio.gather(*blocking)
        seen: list[int] = []
        while len(seen) < len(awaited):
            await asyncio.wait_for(ready.wait(), 20)
            ready.clear()
            seen += pair.client.completed()
        assert all(await gathered) and all(op.ok for op in awaited)
        loop.remove_reader(pair.client.completion_fd)

    asyncio.run(main())
    assert all((copy == memory).all() for copy in copies)


def test_a_waiting_thread_is_told_of_cancel_and_close() -> None:
    silent = WireServer(until_closed)
    client = _core.Endpoint(token=b"token")
    connection = client.connect(silent.address)
    for end, state in ((_core.Op.cancel, "CANCELLED"), (lambda _: connection.close(), "FAILED")):
        op = connection.ping()
        thread = threading.Thread(target=op.wait)
        thread.start()
        assert not op.wait(20)  # the other thread reads meanwhile
        end(op)
        thread.join(20)
        assert not thread.is_alive() and op.state == state
    client.close()
    silent.close()
