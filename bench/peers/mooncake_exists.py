"""Mooncake Store's batch_is_exist among a million objects, on the key sets of our own bench."""

import contextlib
import hashlib
import itertools
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.peers.memory import Memory
from bench.peers.mooncake_cluster import cluster, expect, leave, mooncake_version
from bench.peers.rounds import Case, Rival, Title, main
from bench.rows import Row

OBJECTS: Final = int(os.environ.get("BENCH_OBJECTS", 1_000_000))
KEYS: Final = 128
SETS: Final = 512
BATCH: Final = 1024
VALUE_BYTES: Final = 64
MEMORY_BYTES: Final = 1 << 30


@contextlib.contextmanager
def started() -> Iterator[Rival]:
    """Everything up and `OBJECTS` objects put: a minute or two."""
    with cluster(MEMORY_BYTES) as parts:
        before = resident_bytes(parts.master.pid)
        _fill(parts.store)
        grown = resident_bytes(parts.master.pid) - before
        numbers = random.Random(1)
        same = [[key(i) for i in range(KEYS)]]
        sets = [[key(numbers.randrange(OBJECTS)) for _ in range(KEYS)] for _ in range(SETS)]
        cases = [
            _case(parts.store, "the same", same, {"bytes_per_item": grown / OBJECTS}),
            _case(parts.store, "random", sets, {}),
        ]
        yield Rival(cases, [parts.master.pid, parts.lender.pid])


def key(number: int) -> str:
    """80 characters, as our own bench's."""
    return "bench/model-layout/" + hashlib.sha256(b"%d" % number).hexdigest()[:61]


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _fill(store: Any) -> None:
    memory = Memory(BATCH * VALUE_BYTES)
    expect(store.register_buffer(memory.address, memory.nbytes) == 0, "register_buffer failed")
    sources = [memory.address + i * VALUE_BYTES for i in range(BATCH)]
    for start in range(0, OBJECTS, BATCH):
        keys = [key(i) for i in range(start, min(start + BATCH, OBJECTS))]
        count = len(keys)
        statuses = store.batch_put_from(keys, sources[:count], [VALUE_BYTES] * count)
        expect(not any(statuses), f"a put answered {max(statuses, key=abs)}")


def _case(store: Any, name: str, batches: Sequence[list[str]], figures: Row) -> Case:
    turn = itertools.cycle(batches)

    def arrived() -> bool:
        return all(store.batch_is_exist(batch) == [1] * KEYS for batch in batches)

    return Case(
        f"batch_is_exist {KEYS} keys, {name}, of {OBJECTS:,} objects",
        lambda: store.batch_is_exist(next(turn)),
        arrived,
        items_per_call=KEYS,
        extra=lambda: dict(figures),
    )


if __name__ == "__main__":
    main(Title("exists", "mooncake", mooncake_version()), started)
    leave()
