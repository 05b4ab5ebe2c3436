"""redis-server as a store of KV blocks, over TCP on loopback and over a UNIX socket.

Plain calls of 64 KiB, and pipelines of 32 x 4 KiB; the working set is that of our own bench.
"""

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.children import Child, await_port, free_port
from bench.peers.memory import block
from bench.peers.rounds import Case, Rival, Title, main

WORKING_SET_BYTES: Final = 256 << 20
OBJECTS_MAX: Final = 4096
HOST: Final = "127.0.0.1"


@contextlib.contextmanager
def started() -> Iterator[Rival]:
    """A server in memory alone, and a client for each kind of socket."""
    import redis

    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("redis_peer: needs redis-server on PATH; install the package redis-server")
    with tempfile.TemporaryDirectory() as directory:
        socket, port = Path(directory) / "socket", free_port()
        command = [program, "--port", str(port), "--bind", HOST, "--unixsocket", str(socket)]
        command += ["--save", "", "--appendonly", "no", "--dir", directory, "--maxmemory", "2gb"]
        with Child(command, name="redis-server") as server:
            await_port(server, port)
            clients = {
                "tcp": redis.Redis(HOST, port),
                "unix": redis.Redis(unix_socket_path=str(socket)),
            }
            yield Rival([case for wire in clients.items() for case in _cases(*wire)], [server.pid])


def version() -> str:
    """Of the client; the server's is the system's."""
    import redis

    return str(redis.__version__)


def _cases(wire: str, client: Any) -> list[Case]:
    return [
        _get(wire, client, 64 << 10),
        _set(wire, client, 64 << 10),
        _get_pipeline(wire, client, 32, 4 << 10),
        _set_pipeline(wire, client, 32, 4 << 10),
    ]


def _get(wire: str, client: Any, size: int) -> Case:
    keys = _stored(client, size)
    turn = itertools.cycle(range(len(keys)))
    last: list[tuple[int, bytes]] = []

    def call() -> None:
        number = next(turn)
        last[:] = [(number, client.get(keys[number]))]

    def arrived() -> bool:
        return last[0][1] == block(last[0][0], size)

    return Case(f"{wire} get {size >> 10} KiB", call, arrived, size)


def _set(wire: str, client: Any, size: int) -> Case:
    key, value = f"bench/set/{size}", block(1, size)
    return Case(
        f"{wire} set {size >> 10} KiB",
        lambda: client.set(key, value),
        lambda: bool(client.get(key) == value),
        size,
    )


def _get_pipeline(wire: str, client: Any, count: int, size: int) -> Case:
    keys = _stored(client, size)
    starts = itertools.cycle(range(0, len(keys) - count + 1, count))
    last: list[tuple[int, list[bytes]]] = []

    def call() -> None:
        start = next(starts)
        pipeline = client.pipeline(transaction=False)
        for key in keys[start : start + count]:
            pipeline.get(key)
        last[:] = [(start, pipeline.execute())]

    def arrived() -> bool:
        start, got = last[0]
        return got == [block(start + i, size) for i in range(count)]

    return Case(f"{wire} get {count} x {size >> 10} KiB", call, arrived, count * size, count)


def _set_pipeline(wire: str, client: Any, count: int, size: int) -> Case:
    keys = [f"bench/set/{size}/{i}" for i in range(count)]
    values = [block(i, size) for i in range(count)]

    def call() -> None:
        pipeline = client.pipeline(transaction=False)
        for key, value in zip(keys, values, strict=True):
            pipeline.set(key, value)
        pipeline.execute()

    def arrived() -> bool:
        return bool(client.mget(keys) == values)

    return Case(f"{wire} set {count} x {size >> 10} KiB", call, arrived, count * size, count)


def _stored(client: Any, size: int) -> list[str]:
    """Keys of the working set of objects of `size` bytes, object i holding block i."""
    count = min(OBJECTS_MAX, WORKING_SET_BYTES // size)
    keys = [f"bench/get/{size}/{i}" for i in range(count)]
    for number, key in enumerate(keys):
        client.set(key, block(number, size))
    return keys


if __name__ == "__main__":
    main(Title("store", "redis", version()), started)
