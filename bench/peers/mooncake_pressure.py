"""Mooncake Store when it is full, on the work of `moonpool bench pressure`.

Its own watermark and shares, but where objects are to fill 90 % and not be evicted: there its
watermark is 95 %. Its eviction is told by its metrics.
"""

import contextlib
import itertools
import random
from collections.abc import Iterator
from typing import Any, Final

from bench.peers.memory import Memory, block
from bench.peers.mooncake_cluster import Cluster, cluster, expect, leave, mooncake_version
from bench.peers.mooncake_exists import key
from bench.peers.mooncake_steady import SteadyPuts
from bench.peers.rounds import Case, Rival, Title, cpu_seconds, main
from bench.rows import Row

BLOCK_BYTES: Final = 4 << 10
BATCH: Final = 32

ASKED: Final = 30_000
ASKED_ABSENT: Final = 3_000  # of them
ASK_MEMORY: Final = 512 << 20
PUTS_PER_S: Final = 3_200  # of the other client
ASK_S: Final = 2.5

EVICT_OBJECTS: Final = 100_000
EVICT_BYTES: Final = 256
EVICT_BATCH: Final = 1024
EVICT_BATCHES: Final = 32  # in a round
WATERMARK: Final = 0.9

FULL_MEMORY: Final = 512 << 20
FULL_SHARE: Final = 0.9
MIX: Final = ((4 << 10, 0.7), (256 << 10, 0.2), (3 << 20, 0.1))
CHURN: Final = 0.1  # so much of the mix was taken out and put anew
NOT_EVICTING: Final = ("--eviction_high_watermark_ratio=0.95",)

SEGMENTS: Final = 16
REPLICAS: Final = 3
SEGMENT_MEMORY: Final = 64 << 20

KEYS: Final = "master_key_count"
EVICTED: Final = "master_evicted_key_count"


@contextlib.contextmanager
def started() -> Iterator[Rival]:
    """Four stores, each for one kind of pressure."""
    with contextlib.ExitStack() as stack:
        asked = _Asked(stack.enter_context(cluster(ASK_MEMORY)))
        stack.enter_context(asked.others.child)
        memory = int(EVICT_OBJECTS * EVICT_BYTES / WATERMARK)
        evictions = _Evictions(stack.enter_context(cluster(memory)))
        full = _Full(stack.enter_context(cluster(FULL_MEMORY, further=NOT_EVICTING)))
        spread = _spread(stack.enter_context(cluster(SEGMENT_MEMORY, SEGMENTS)))
        puts = [full.put(BATCH, BLOCK_BYTES), full.put(4, 256 << 10)]
        cases = [asked.case(), evictions.case(), full.get(), *puts, spread]
        yield Rival(cases, [])


class _Writer:
    """Puts from one registered buffer."""

    def __init__(self, store: Any, nbytes: int, count: int) -> None:
        self.store = store
        self.nbytes, self.count = nbytes, count
        self.memory = Memory(-(-nbytes * count // 4096) * 4096)
        status = store.register_buffer(self.memory.address, self.memory.nbytes)
        expect(status == 0, f"register_buffer answered {status}")
        self.sources = [self.memory.address + i * nbytes for i in range(count)]

    def put(self, keys: list[str], *config: Any) -> None:
        count = len(keys)
        sizes = [self.nbytes] * count
        statuses = self.store.batch_put_from(keys, self.sources[:count], sizes, *config)
        expect(not any(statuses), f"a put answered {max(statuses, key=abs)}")


class _Asked:
    """Questions for 30,000 keys, a tenth of them never put, while another client puts."""

    def __init__(self, parts: Cluster) -> None:
        self._parts = parts
        self.others = SteadyPuts(parts.address, BLOCK_BYTES, PUTS_PER_S)
        self._writer = _Writer(parts.store, BLOCK_BYTES, 128)
        self._numbers = itertools.count()
        self._absent = [f"bench/absent/{i}" for i in range(ASKED_ABSENT)]
        self._expected = [1] * (ASKED - ASKED_ABSENT) + [0] * ASKED_ABSENT
        self._put(int(WATERMARK * ASK_MEMORY) // BLOCK_BYTES)

    def case(self) -> Case:
        return Case(
            f"batch_is_exist {ASKED:,} keys, while evicting",
            self._call,
            lambda: self._good,
            items_per_call=ASKED,
            extra=self._end,
            begin=self._begin,
            span_s=ASK_S,
            enough=lambda: self._evicted() > 0,  # many at once, and then none for seconds
        )

    def _put(self, count: int) -> list[str]:
        keys = [key(number) for number in itertools.islice(self._numbers, count)]
        for start in range(0, count, 128):
            self._writer.put(keys[start : start + 128])
        return keys

    def _begin(self) -> None:
        self._keys = self._put(ASKED - ASKED_ABSENT) + self._absent
        self._good = True
        self._before = self._parts.counted(EVICTED)
        self.others.go()

    def _call(self) -> None:
        found = self._parts.store.batch_is_exist(self._keys)
        self._good = self._good and found == self._expected

    def _end(self) -> Row:
        put = self.others.stop()
        evicted = self._evicted()
        self._good = self._good and evicted > 0
        return {
            "evicted_per_s": round(evicted / put.seconds),
            "puts_per_s": round(put.stored / put.seconds),
            "refused": put.refused,
        }

    def _evicted(self) -> float:
        return self._parts.counted(EVICTED) - self._before


class _Evictions:
    """Puts of a full store; what its master spends beyond what it spent before it was full."""

    def __init__(self, parts: Cluster) -> None:
        self._parts = parts
        self._writer = _Writer(parts.store, EVICT_BYTES, EVICT_BATCH)
        self._numbers = itertools.count()
        self._batches = 0
        ahead = EVICT_OBJECTS // EVICT_BATCH - EVICT_BATCHES - 8
        self._put(ahead)
        self._before = self._put(EVICT_BATCHES)
        expect(parts.counted(EVICTED) == 0, "it evicts before it is full")
        self._put(16 + EVICT_OBJECTS // EVICT_BATCH // 8)

    def case(self) -> Case:
        return Case(
            f"evict, {EVICT_OBJECTS:,} objects, puts of {EVICT_BATCH:,}",
            self._call,
            lambda: self._evicted > EVICT_BATCH * self._calls / 2 and self._there(),
            items_per_call=EVICT_BATCH,
            extra=self._end,
            begin=self._begin,
            span_s=1.5,
        )

    def _put(self, batches: int) -> float:
        """Microseconds of the master's CPU for each object."""
        before = cpu_seconds([self._parts.master.pid]) - cpu_seconds([])
        for _ in range(batches):
            self._call()
        after = cpu_seconds([self._parts.master.pid]) - cpu_seconds([])
        return (after - before) * 1e6 / (batches * EVICT_BATCH)

    def _call(self) -> None:
        self._last = [key(number) for number in itertools.islice(self._numbers, EVICT_BATCH)]
        self._writer.put(self._last)
        self._batches += 1

    def _begin(self) -> None:
        self._evicted_before = self._parts.counted(EVICTED)
        self._first = self._batches
        self._cpu = cpu_seconds([self._parts.master.pid]) - cpu_seconds([])

    def _end(self) -> Row:
        spent = cpu_seconds([self._parts.master.pid]) - cpu_seconds([]) - self._cpu
        self._calls = self._batches - self._first
        put = EVICT_BATCH * self._calls
        self._evicted = self._parts.counted(EVICTED) - self._evicted_before
        each = spent * 1e6 / put
        beyond = max(each - self._before, 0.0) * put / max(self._evicted, 1)
        return {
            "master_us_per_object": round(each, 3),
            "evict_us_per_object": round(beyond, 3),
            "evicted": int(self._evicted),
        }

    def _there(self) -> bool:
        oldest = [key(number) for number in range(1000)]
        store = self._parts.store
        return bool(
            store.batch_is_exist(self._last) == [1] * EVICT_BATCH
            and not any(store.batch_is_exist(oldest))
        )


class _Full:
    """Puts and gets at 90 %, objects of mixed sizes around, a tenth of them put anew."""

    def __init__(self, parts: Cluster) -> None:
        self._store = parts.store
        self._pids = [parts.master.pid, parts.lender.pid]
        self._parts = parts
        self._at = f"{FULL_SHARE:.0%} full"
        self._turns = itertools.count()
        self._churned()
        self._kept = [f"bench/kept/{i}" for i in range(BATCH)]
        self._values = [block(i, BLOCK_BYTES) for i in range(BATCH)]
        expect(self._store.put_batch(self._kept, self._values) == 0, "put_batch failed")

    def get(self) -> Case:
        return Case(
            f"get_batch {BATCH} x 4 KiB, {self._at}",
            lambda: self._store.get_batch(self._kept),
            lambda: bool(self._store.get_batch(self._kept) == self._values),
            BATCH * BLOCK_BYTES,
            BATCH,
        )

    def put(self, count: int, nbytes: int) -> Case:
        values = [block(i, nbytes) for i in range(count)]
        last: list[str] = []

        def call() -> None:
            turn = next(self._turns)
            last[:] = [f"bench/full/{nbytes}/{turn}/{i}" for i in range(count)]
            status = self._store.put_batch(last, values)
            expect(status == 0, f"put_batch answered {status}")

        def out() -> None:
            expect(not any(self._store.batch_remove(last, True)), "batch_remove failed")

        def arrived() -> bool:
            call()
            good = bool(self._store.get_batch(last) == values)
            out()
            return good and self._parts.counted(KEYS) == self._objects + BATCH

        name = f"put_batch {count} x {nbytes >> 10} KiB, {self._at}"
        return Case(name, call, arrived, count * nbytes, count, after=out)

    def _churned(self) -> None:
        numbers = random.Random(7)
        held: list[tuple[str, int]] = []
        turn = itertools.count()
        sizes, weights = [size for size, _ in MIX], [weight for _, weight in MIX]

        def put_up_to_share() -> None:
            used = sum(size for _, size in held)
            while used + (size := numbers.choices(sizes, weights)[0]) <= FULL_SHARE * FULL_MEMORY:
                name = f"bench/mix/{next(turn)}"
                expect(self._store.put(name, bytes(size)) == 0, "put failed")
                held.append((name, size))
                used += size

        put_up_to_share()
        gone = set(numbers.sample(range(len(held)), int(CHURN * len(held))))
        names = [held[i][0] for i in sorted(gone)]
        expect(not any(self._store.batch_remove(names, True)), "batch_remove failed")
        held[:] = [one for i, one in enumerate(held) if i not in gone]
        put_up_to_share()
        self._objects = len(held)


def _spread(parts: Cluster) -> Case:
    """Three copies each, over sixteen segments; taken out again, untimed."""
    from mooncake.store import ReplicateConfig

    store = parts.store
    config = ReplicateConfig()
    config.replica_num = REPLICAS
    values = [block(i, BLOCK_BYTES) for i in range(BATCH)]
    turns = itertools.count()
    last: list[str] = []

    def call() -> None:
        turn = next(turns)
        last[:] = [f"bench/spread/{turn}/{i}" for i in range(BATCH)]
        status = store.put_batch(last, values, config)
        expect(status == 0, f"put_batch answered {status}")

    def out() -> None:
        expect(not any(store.batch_remove(last, True)), "batch_remove failed")

    def arrived() -> bool:
        call()
        good = store.get_batch(last) == values
        copies = store.batch_get_replica_desc(last)
        good = good and all(len(copies[name]) == REPLICAS for name in last)
        out()
        return bool(good)

    name = f"put_batch {BATCH} x 4 KiB, {REPLICAS} replicas over {SEGMENTS} segments"
    return Case(name, call, arrived, BATCH * BLOCK_BYTES, BATCH, after=out)


if __name__ == "__main__":
    main(Title("pressure", "mooncake", mooncake_version()), started)
    leave()
