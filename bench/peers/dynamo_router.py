"""Dynamo's prefix index (RadixTree of the ai-dynamo-runtime wheel) on the work of `moonpool bench
router`: finds among a hundred thousand blocks, and events of 16 blocks in and out.

Its Python entry takes an event as JSON bytes and a query as a list of ints; what JSON and lists
cost is a part of its figures, making them is not.

The tree lives in a thread of its own, and each call waits for its answer. Where the scheduler puts
the two threads on different CPUs, most of a call is waking one that sleeps; so they share one here.
The case of an event that holds nothing tells what is left of it.
"""

import contextlib
import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any, Final

from bench.peers.rounds import Case, Rival, Title, main
from bench.rows import Row

BLOCKS: Final = 999_936  # as our own bench, 7,812 chains
CHAIN_BLOCKS: Final = 128
EVENT_BLOCKS: Final = 16
FREED_S: Final = 0.1  # a tree of a million blocks is freed in 0.02 s by its thread, on our CPU
_MASK: Final = (1 << 64) - 1

Chain = tuple[list[int], list[int]]  # local and sequence hashes


@contextlib.contextmanager
def started() -> Iterator[Rival]:
    """Trees of the find cases filled."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # threads of trees inherit it
    cases = [_find(512, 8), _find(8192, 64), _nothing()]
    cases += [_Churn(workers).case() for workers in (8, 64)]
    yield Rival(cases, [])


def tree() -> Any:
    """An empty index."""
    from dynamo._core import RadixTree

    return RadixTree()


def mix(x: int) -> int:
    """The finalizer of splitmix64 after one step."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def chain(tag: int, blocks: int) -> Chain:
    """The hashes of one prompt; Dynamo refuses none of them in JSON."""
    local = [mix(mix(tag) + i) for i in range(blocks)]
    sequence, before = [], 0
    for one in local:
        before = mix(before ^ one) if before else one
        sequence.append(before)
    return local, sequence


def stored(of: Chain, first: int, count: int, number: int) -> bytes:
    """An event of blocks `first` on."""
    local, sequence = of
    blocks = [
        {"block_hash": sequence[i], "tokens_hash": local[i]} for i in range(first, first + count)
    ]
    parent = sequence[first - 1] if first else None
    data = {"stored": {"parent_hash": parent, "blocks": blocks}}
    return json.dumps({"event_id": number, "dp_rank": 0, "data": data}).encode()


def removed(sequence: Sequence[int], number: int) -> bytes:
    """An event of these blocks, the last first."""
    data = {"removed": {"block_hashes": list(sequence)[::-1]}}
    return json.dumps({"event_id": number, "dp_rank": 0, "data": data}).encode()


def _prompt(number: int) -> Chain:
    return chain(number + 1000, CHAIN_BLOCKS)


def _find(blocks: int, workers: int) -> Case:
    index = tree()
    prompt = chain(7, blocks)
    depths = {worker: blocks * (worker + 1) // workers for worker in range(workers)}
    for worker, depth in depths.items():
        for at in range(0, depth, CHAIN_BLOCKS):
            count = min(CHAIN_BLOCKS, depth - at)
            index.apply_event(worker, stored(prompt, at, count, at + 1))

    def arrived() -> bool:
        found = index.find_matches(prompt[0]).scores
        return {key[0]: depth for key, depth in found.items()} == depths

    name = f"find {blocks} blocks, {workers} workers, each another part"
    return Case(name, lambda: index.find_matches(prompt[0]).scores, arrived)


def _nothing() -> Case:
    """A call and its answer: what every event costs before it has a block."""
    index = tree()
    prompt = chain(7, EVENT_BLOCKS)
    index.apply_event(0, stored(prompt, 0, EVENT_BLOCKS, 0))
    event = removed([], 1)

    def arrived() -> bool:
        return list(index.find_matches(prompt[0]).scores.values()) == [EVENT_BLOCKS]

    return Case("events of no block", lambda: index.apply_event(0, event), arrived)


class _Churn:
    """Each call: a new index, all events in, a tenth of them out, one worker dropped."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._stored: list[tuple[int, bytes]] = []
        self._removed: list[tuple[int, bytes]] = []
        self._index: Any = None
        self._laps: list[tuple[float, float, float]] = []
        for number in range(BLOCKS // CHAIN_BLOCKS):
            prompt, worker = _prompt(number), number % workers
            for at in range(0, CHAIN_BLOCKS, EVENT_BLOCKS):
                self._stored.append((worker, stored(prompt, at, EVENT_BLOCKS, at + 1)))
            if number % 10 == 0:
                for at in range(CHAIN_BLOCKS - EVENT_BLOCKS, -1, -EVENT_BLOCKS):
                    part = prompt[1][at : at + EVENT_BLOCKS]
                    self._removed.append((worker, removed(part, 1)))

    def case(self) -> Case:
        name = f"events of 16 blocks, {self._workers} workers"
        return Case(name, self._call, self._arrived, extra=self._figures)

    def _arrived(self) -> bool:
        """The first prompt was removed, the second one's worker dropped, the third is there."""
        found = [self._index.find_matches(_prompt(number)[0]).scores for number in range(3)]
        depths = [{key[0]: depth for key, depth in scores.items()} for scores in found]
        return depths == [{}, {}, {2: CHAIN_BLOCKS}]

    def _call(self) -> None:
        self._index = None
        time.sleep(FREED_S)
        self._index = index = tree()
        marks = [time.perf_counter()]
        for events in (self._stored, self._removed):
            for worker, event in events:
                index.apply_event(worker, event)
            marks.append(time.perf_counter())
        index.remove_worker(1)
        marks.append(time.perf_counter())
        self._laps.append((marks[1] - marks[0], marks[2] - marks[1], marks[3] - marks[2]))

    def _figures(self) -> Row:
        store, remove, drop = (
            statistics.median(column) for column in zip(*self._laps, strict=True)
        )
        self._laps.clear()
        self._laps.append((store, remove, drop))
        return {
            "store_blocks_per_s": round(BLOCKS / store),
            "remove_blocks_per_s": round(len(self._removed) * EVENT_BLOCKS / remove),
            "drop_us": round(drop * 1e6, 1),
        }


if __name__ == "__main__":
    main(Title("router", "dynamo", version("ai-dynamo-runtime")), started)
