"""A process of its own that puts fresh objects into Mooncake at a steady pace, as ours does.

As `python -m bench.peers.mooncake_steady MASTER NBYTES PER_S` it is that process: between "go" and
"stop" on its stdin it puts, then it says how many were stored and how many were not.
"""

import select
import sys
import time
from typing import Any, Final, NamedTuple

from bench.children import Child
from bench.peers.memory import Memory
from bench.peers.mooncake_cluster import READY, START_WAIT_S, connected, expect, leave, quiet

BATCH: Final = 32
BUFFER_BYTES: Final = 64 << 20
STOP_WAIT_S: Final = 60.0


class Put(NamedTuple):
    """Of one stretch between "go" and "stop"."""

    stored: int
    refused: int
    seconds: float


class SteadyPuts:
    """`per_s` objects of `nbytes` each, for the master at `address`."""

    def __init__(self, address: str, nbytes: int, per_s: int) -> None:
        command = [sys.executable, "-m", "bench.peers.mooncake_steady", address]
        self.child = Child([*command, str(nbytes), str(per_s)], name="mooncake steady puts")
        self.child.wait_for(READY, START_WAIT_S)

    def go(self) -> None:
        """From now on it puts."""
        self.child.say("go")
        self.child.wait_for("going", STOP_WAIT_S)

    def stop(self) -> Put:
        """It has stopped; what it did since `go`."""
        self.child.say("stop")
        stored, refused, seconds = self.child.wait_for("put", STOP_WAIT_S).split()
        return Put(int(stored), int(refused), float(seconds))


def put_until_told(store: Any, nbytes: int, per_s: int, first: int) -> tuple[int, int]:
    """Batches at their moments; one that comes late is followed at once by the next."""
    memory = Memory(BATCH * nbytes)
    expect(store.register_buffer(memory.address, memory.nbytes) == 0, "register_buffer failed")
    sources = [memory.address + i * nbytes for i in range(BATCH)]
    begun, stored, refused = time.perf_counter(), 0, 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        number = first + stored + refused
        keys = [f"bench/steady/{number + i}" for i in range(BATCH)]
        statuses = store.batch_put_from(keys, sources, [nbytes] * BATCH)
        good = statuses.count(0)
        stored, refused = stored + good, refused + BATCH - good
        due = begun + (stored + refused) / per_s
        time.sleep(max(0.0, due - time.perf_counter()))
    store.unregister_buffer(memory.address)
    return stored, refused


def main() -> None:
    """Obey lines on stdin until it closes."""
    quiet()
    nbytes, per_s = int(sys.argv[2]), int(sys.argv[3])
    store = connected(sys.argv[1], 0, BUFFER_BYTES)
    print(READY, flush=True)
    first = 0
    while sys.stdin.readline():  # "go"
        print("going", flush=True)
        begun = time.perf_counter()
        stored, refused = put_until_told(store, nbytes, per_s, first)
        first += stored + refused
        sys.stdin.readline()  # "stop"
        print("put", stored, refused, time.perf_counter() - begun, flush=True)


if __name__ == "__main__":
    main()
    leave()
