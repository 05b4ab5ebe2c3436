"""Mooncake's Transfer Engine reading another process's memory over TCP on loopback.

As `python -m bench.peers.mooncake_te target` it is the process that is read from. The connection
pool and everything else is at its default. Blocks of a batch lie in reverse: none adjoins the next.
"""

import contextlib
import itertools
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from bench.children import Child
from bench.peers.memory import Memory, block, blocks_text
from bench.peers.mooncake_cluster import HOST, READY, expect, leave, mooncake_version, quiet
from bench.peers.rounds import Case, Rival, Title, main

REGION_BYTES: Final = 256 << 20  # larger than a cache; reads walk through it
TARGET_BYTES: Final = 16 << 20
TARGET: Final = "target"
BIG: Final = ((1, 1 << 20), (1, 16 << 20))


class Remote(NamedTuple):
    """Where the target's memory is."""

    segment: str
    address: int


@contextlib.contextmanager
def started() -> Iterator[Rival]:
    """The target up, and an engine in this process with a buffer to read into."""
    quiet()
    with Child([sys.executable, "-m", "bench.peers.mooncake_te", TARGET], name=TARGET) as target:
        segment, address = target.wait_for(READY, 60).split()
        memory = Memory(TARGET_BYTES)
        engine = registered(memory)
        remote = Remote(segment, int(address))
        cases = [
            _read(engine, memory, remote, count, size)
            for count, size in ((32, 4 << 10), (1, 4 << 10), (1, 64 << 10), *BIG)
        ]
        cases.insert(1, _read_ahead(engine, memory, remote, 32, 4 << 10, 4))
        yield Rival(cases, [target.pid])


def registered(memory: Memory) -> Any:
    """An engine of this process that knows `memory`. Raises RuntimeError."""
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    status = engine.initialize(HOST, "P2PHANDSHAKE", "tcp", "")
    expect(status == 0, f"initialize answered {status}")
    status = engine.register_memory(memory.address, memory.nbytes)
    expect(status == 0, f"register_memory answered {status}")
    return engine


def _read(engine: Any, memory: Memory, remote: Remote, count: int, size: int) -> Case:
    places = REGION_BYTES // (count * size)
    turn = itertools.cycle(range(places))
    local = [memory.address + i * size for i in range(count)]
    last: list[Sequence[int]] = [()]

    def call() -> None:
        place = next(turn)
        numbers = [place * count + count - 1 - i for i in range(count)]
        there = [remote.address + number * size for number in numbers]
        if count == 1:
            status = engine.transfer_sync_read(remote.segment, local[0], there[0], size)
        else:
            status = engine.batch_transfer_sync_read(remote.segment, local, there, [size] * count)
        expect(status == 0, f"read answered {status}")
        last[0] = numbers

    def arrived() -> bool:
        return memory.took(last[0], size)

    return Case(f"tcp read {blocks_text(count, size)}", call, arrived, count * size, count)


def _read_ahead(
    engine: Any, memory: Memory, remote: Remote, count: int, size: int, depth: int
) -> Case:
    """`depth` batches in flight through the asynchronous calls: a call submits one, and waits for
    the oldest."""
    turn = itertools.cycle(range(REGION_BYTES // (count * size)))
    rooms = itertools.cycle(range(depth))
    in_flight: deque[tuple[int, int, Sequence[int]]] = deque()

    def submit() -> None:
        room, place = next(rooms), next(turn)
        numbers = [place * count + count - 1 - i for i in range(count)]
        there = [remote.address + number * size for number in numbers]
        here = [memory.address + (room * count + i) * size for i in range(count)]
        batch = engine.batch_transfer_async_read(remote.segment, here, there, [size] * count)
        expect(batch > 0, f"submit answered {batch}")
        in_flight.append((batch, room, numbers))

    def take() -> tuple[int, Sequence[int]]:
        batch, room, numbers = in_flight.popleft()
        status = engine.get_batch_transfer_status([batch])
        expect(status == 0, f"read answered {status}")
        return room, numbers

    def call() -> None:
        submit()
        if len(in_flight) == depth:
            take()

    def arrived() -> bool:
        taken = [take() for _ in range(len(in_flight))]
        good = len(taken) == depth - 1
        for room, numbers in taken:
            at = room * count * size
            parts = enumerate(numbers)
            good &= all(memory.holds(at + i * size, block(n, size)) for i, n in parts)
        memory.clear()
        return good

    name = f"tcp read {count} x {size >> 10} KiB, {depth} in flight"
    return Case(name, call, arrived, count * size, count)


def target() -> None:
    """Be read from until stdin closes."""
    quiet()
    memory = Memory(REGION_BYTES)
    for number in range(REGION_BYTES >> 20):
        memory.write(number << 20, block(number, 1 << 20))
    engine = registered(memory)
    print(f"{READY} {HOST}:{engine.get_rpc_port()} {memory.address}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1:] == [TARGET]:
        target()
    else:
        main(Title("transfer", "mooncake", mooncake_version()), started)
    leave()
