"""What the sparse bench measures with: stamped prefixes and traces."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from moonpool.core.sections import ClientConfig, MasterConfig, NodeConfig
from moonpool.pool.cluster import Cluster, local_directory
from moonpool.pool.pool import Pool
from moonpool.pool.shell import BlockingShell
from moonpool.sparse import PrefixStore, SparseLayout

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
KEY: Final = "bench/prefix"
TIMEOUT_MS: Final = 300_000
# Of k rows a step, how many come from which depth of what was used last, in units of k: LRU buffers
# of k, 2k and 4k rows then miss 30 %, 13.4 % and 6.7 %, as published (HiSparse, GLM-5.1).
_DEPTHS: Final = ((0.0, 1.0, 0.700), (1.0, 2.0, 0.166), (2.0, 4.0, 0.067), (4.0, 1e9, 0.067))


class Laps:
    """Times of several things that are measured in turns, in seconds."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}

    def add(self, name: str, seconds: float) -> None:
        self._times.setdefault(name, []).append(seconds)

    def time(self, name: str, call: Callable[[], object]) -> None:
        begin = time.perf_counter()
        call()
        self.add(name, time.perf_counter() - begin)

    @contextlib.contextmanager
    def sums(self) -> Iterator[Laps]:
        """Times of parts: what was added to each name here is one lap."""
        parts = Laps()
        yield parts
        for name, times in parts._times.items():
            self.add(name, sum(times))

    def median(self, name: str) -> float:
        return statistics.median(self._times[name])

    def percentile(self, name: str, percent: float) -> float:
        return float(np.percentile(self._times[name], percent))

    def figures(self, *names: str) -> dict[str, float]:
        """For each its median, NAME_s, and its fastest lap, NAME_fastest_s: what the machine does
        while nobody else wants anything of it."""
        medians = {f"{name}_s": self.median(name) for name in names}
        return medians | {f"{name}_fastest_s": min(self._times[name]) for name in names}


class Spare:
    """Memory touched before, for bytes that nobody looks at: another part of it each time, so that
    it is in no cache."""

    def __init__(self, nbytes: int) -> None:
        self._memory: U8 = np.ones(nbytes, np.uint8)
        self._at = 0

    def take(self, nbytes: int) -> U8:
        """So many bytes, no more than there are."""
        if self._at + nbytes > len(self._memory):
            self._at = 0
        self._at += nbytes
        return self._memory[self._at - nbytes : self._at]


def memory_budget() -> int:
    """Bytes that pool and destinations may take: 60 % of the machine, and no more than is free."""
    facts = dict(
        line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line
    )
    total, free = (int(facts[name]) << 10 for name in ("MemTotal:", "MemAvailable:"))
    return min(total * 6 // 10, free - (2 << 30))


def layers_that_fit(row_bytes: int, index_bytes: int, tokens: int, wanted: int) -> int:
    """The prefix, one more copy of it and hot rows have to fit."""
    return max(1, min(wanted, memory_budget() // (2 * tokens * (row_bytes + index_bytes))))


@contextlib.contextmanager
def stored_prefix(layout: SparseLayout, tokens: int) -> Iterator[tuple[Cluster, Path, Pool, Pool]]:
    """A node with a stamped prefix, as `node_for` gives it."""
    with node_for(tokens * layout.token_bytes) as parts:
        with PrefixStore(parts[2], layout).writer(KEY, tokens) as writer:
            for layer in range(layout.layers):
                keys = np.full(
                    (layout.pages(tokens), layout.index_page_bytes), layer % 251, np.uint8
                )
                writer.put(layer, 0, stamped(layout, layer, np.arange(tokens)), keys)
            writer.seal()
        yield parts


@contextlib.contextmanager
def node_for(nbytes: int) -> Iterator[tuple[Cluster, Path, Pool, Pool]]:
    """A master and one node with so much room; its folder, and clients by shared memory and by
    TCP."""
    with local_directory("bench") as folder:
        node = NodeConfig(
            name="node0",
            memory=nbytes + (64 << 20),
            headroom=32 << 20,
            dir=str(folder),
            persist=False,
        )
        master = MasterConfig(port=0, nodes_expected=1, reservation_ms=TIMEOUT_MS)
        with Cluster(master, [node]) as cluster, contextlib.ExitStack() as pools:
            near, far = (
                pools.enter_context(connect(cluster.address, shared)) for shared in (True, False)
            )
            yield cluster, folder, near, far


def connect(address: str, shared_memory: bool) -> Pool:
    """A client that may hold views on everything."""
    config = ClientConfig(
        master=address,
        token="",
        timeout_ms=TIMEOUT_MS,
        shared_memory=shared_memory,
        pinned_bytes_max=1 << 40,
    )
    shell = BlockingShell(config)
    try:
        shell.connect(30)
    except BaseException:
        shell.close()
        raise
    return Pool(shell, config)


def stamped(layout: SparseLayout, layer: int, tokens: Any) -> U8:
    """Rows that name their layer and token at both ends, and differ in between by layer."""
    column = np.asarray(tokens, np.uint64)
    rows = np.empty((len(column), layout.entry_bytes), np.uint8)
    rows[:] = np.random.default_rng(layer).integers(0, 256, layout.entry_bytes, np.uint8)
    name = (column << np.uint64(16)) | np.uint64(layer)
    ends = name[:, None].view(np.uint8).reshape(len(column), 8)
    rows[:, :8] = ends
    rows[:, -8:] = ends
    return rows


def is_stamped(layout: SparseLayout, layer: int, tokens: Any, rows: U8) -> bool:
    return bool(np.array_equal(rows, stamped(layout, layer, tokens)))


class Trace:
    """Positions wanted by each layer, step by step, at the published depths of reuse."""

    def __init__(self, layers: int, tokens: int, top_k: int, seed: int = 1) -> None:
        self._random = np.random.default_rng(seed)
        self.top_k = min(top_k, tokens)
        # Positions by last use, newest first.
        self.stacks = [self._random.permutation(tokens).astype(np.uint32) for _ in range(layers)]

    def step(self) -> list[U32]:
        """Each layer's next top-k."""
        return [self._next(layer) for layer in range(len(self.stacks))]

    def recent(self, rows: int) -> list[U32]:
        """What a buffer of `rows` rows holds by now, oldest first."""
        return [stack[:rows][::-1].copy() for stack in self.stacks]

    def _next(self, layer: int) -> U32:
        stack, k = self.stacks[layer], self.top_k
        chosen = []
        left = k
        for low, high, share in _DEPTHS:
            start, stop = int(low * k), min(int(high * k), len(stack))
            # The deepest bucket takes what rounding left over.
            wanted = round(share * k) if high < _DEPTHS[-1][1] else left
            count = min(wanted, max(0, stop - start), left)
            if count:
                chosen.append(start + self._random.choice(stop - start, count, replace=False))
                left -= count
        at = np.concatenate(chosen)
        self._random.shuffle(at)
        rows = stack[at]
        self.stacks[layer] = np.concatenate([rows, np.delete(stack, at)])
        return rows


def segment_file(folder: Path) -> Path:
    """The node's segment: the largest file below its folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)
