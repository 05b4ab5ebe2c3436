"""A process that puts fresh objects at a steady pace, so that a full pool goes on evicting.

As `python -m moonpool.bench.steady_puts MASTER NBYTES PER_S` it is that process: between "go" and
"stop" on its stdin it puts, then it says how many were stored and how many were not.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from types import TracebackType
from typing import Final, NamedTuple, Self

import moonpool
from moonpool.core.errors import PoolError

BATCH: Final = 32
ANSWER_S: Final = 60.0  # it may be in a put that waits


class Put(NamedTuple):
    """Of one stretch between "go" and "stop"."""

    stored: int
    refused: int
    seconds: float


class SteadyPuts:
    """`per_s` objects of `nbytes` each, for the master at `address`; alive inside `with`."""

    def __init__(self, address: str, nbytes: int, per_s: int) -> None:
        command = [sys.executable, "-m", __name__, address, str(nbytes), str(per_s)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._hear("ready")

    def go(self) -> None:
        """From now on it puts."""
        self._say("go")
        self._hear("going")

    def stop(self) -> Put:
        """It has stopped; what it did since `go`."""
        self._say("stop")
        stored, refused, seconds = self._hear("put").split()
        return Put(int(stored), int(refused), float(seconds))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self, start: str) -> str:
        assert self._process.stdout is not None
        said = select.select([self._process.stdout], [], [], ANSWER_S)[0]
        line = self._process.stdout.readline() if said else ""
        if not line.startswith(start):
            self._process.kill()
            raise PoolError(f"the process that puts said {line!r} instead of {start!r}")
        return line.removeprefix(start)


def _put_until_told(pool: moonpool.Pool, nbytes: int, per_s: int, first: int) -> tuple[int, int]:
    """Batches at their moments; one that comes late is followed at once by the next."""
    values = [os.urandom(nbytes)] * BATCH
    begun, stored, refused = time.perf_counter(), 0, 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        number = first + stored + refused
        keys = [b"bench/steady/%d" % (number + i) for i in range(BATCH)]
        good = sum(result.ok for result in pool.put_many(keys, values))
        stored, refused = stored + good, refused + BATCH - good
        due = begun + (stored + refused) / per_s
        time.sleep(max(0.0, due - time.perf_counter()))
    return stored, refused


def main() -> None:
    """Obey lines on stdin until it closes."""
    address, nbytes, per_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    first = 0
    with moonpool.connect(address, token="", timeout_s=30) as pool:
        print("ready", flush=True)
        while sys.stdin.readline():  # "go"
            print("going", flush=True)
            begun = time.perf_counter()
            stored, refused = _put_until_told(pool, nbytes, per_s, first)
            first += stored + refused
            sys.stdin.readline()  # "stop"
            print("put", stored, refused, time.perf_counter() - begun, flush=True)


if __name__ == "__main__":
    main()
