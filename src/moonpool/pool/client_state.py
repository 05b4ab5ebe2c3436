"""What a client knows: placements, topology, reads not yet reported. No I/O, no threads of its own.

The placement cache is a hint. Generations make a stale entry harmless: it answers "look again".
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from moonpool.core.errors import Closed
from moonpool.pool.hedging import LEARNT_MS, Hedging
from moonpool.pool.messages import MEMORY, ReadTimes, SegmentEndpoint, TopologyIs, Touches
from moonpool.pool.ports import Port
from moonpool.pool.read_costs import ReadCosts
from moonpool.pool.read_order import Rank, placed
from moonpool.pool.read_times import Untold


class Replica(NamedTuple):
    port: Port
    slot: int
    generation: int


class Placement(NamedTuple):
    """Where a committed object lies. `row` and `sequence` name it towards the master."""

    size: int
    row: int
    sequence: int
    replicas: tuple[Replica, ...]  # best first


class TouchLog:
    """Reads to report, oldest first, bounded: when full the oldest are forgotten.

    Any threads add and take at one time without a lock: each step on a deque is one of the
    interpreter's, and row and sequence are one entry.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries: deque[tuple[int, int]] = deque(maxlen=entries_max)
        self.oldest: float = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, row: int, sequence: int, now: float) -> None:
        entries = self._entries
        if not entries:
            self.oldest = now
        entries.append((row, sequence))

    def read(self, placement: Placement, now: Callable[[], float]) -> None:
        """As `add`. The hot path: the clock is asked only for the first of them."""
        entries = self._entries
        if not entries:
            self.oldest = now()
        entries.append((placement.row, placement.sequence))

    def extend(self, rows: Iterable[int], sequences: Iterable[int], now: float) -> None:
        """As many reads, oldest first."""
        if not self._entries:
            self.oldest = now
        self._entries.extend(zip(rows, sequences, strict=True))

    def take(self) -> Touches:
        """Everything logged so far, as a column; whoever takes at the same time gets the rest."""
        entries = self._entries
        if not entries:
            return Touches()
        pop = entries.popleft
        taken: list[tuple[int, int]] = []
        with suppress(IndexError):  # another thread was faster
            for _ in range(len(entries)):
                taken.append(pop())
        rows = np.array([row for row, _ in taken], np.int32)
        sequences = np.array([sequence for _, sequence in taken], np.uint64)
        return Touches(rows.tobytes(), sequences.tobytes())


def _same_way(port: Port, before: SegmentEndpoint, now: SegmentEndpoint) -> bool:
    """A node that was restarted has another TCP port, but its mapped file is the one we have."""
    if port.local:
        return (before.unix, before.path) == (now.unix, now.path)
    return before.tcp == now.tcp


class ClientState:
    """Shared by all calls of one client, from any thread. Only the opening of a port is under a
    lock; whatever else two threads do at one time leaves one thread's answer."""

    def __init__(
        self,
        host_id: str,
        open_port: Callable[[SegmentEndpoint], Port],
        *,
        cache_entries_max: int = 1_000_000,
        touches_max: int = 65_536,
        hedge_ms: int = LEARNT_MS,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """`labels`: of this client's place; empty: those of the nodes on its host."""
        self.host_id = host_id
        self._labels = frozenset((labels or {}).items())
        self._near = self._labels
        self.cache: OrderedDict[bytes, Placement] = OrderedDict()
        self.cache_entries_max = cache_entries_max
        self.touches = TouchLog(touches_max)
        self.untold = Untold()
        self.hedging = Hedging(hedge_ms)
        self.costs = ReadCosts()
        self._ranks: dict[bytes, Rank] = {}
        self.forgotten: deque[Any] = deque()  # attempts and claims of lost write sessions
        self.topology_version = -1
        self.term = 0
        self.endpoints: dict[int, SegmentEndpoint] = {}
        self._by_incarnation: dict[bytes, SegmentEndpoint] = {}
        self.nodes_up = 0  # as the master last said; with memory, not tiers alone
        self._open_port = open_port
        self._opening = threading.Lock()
        self._ports: dict[bytes, tuple[SegmentEndpoint, Port]] = {}
        self._closed = False  # written under `_opening`

    def remember(self, key: bytes, placement: Placement) -> None:
        cache = self.cache
        cache[key] = placement
        if len(cache) > self.cache_entries_max:
            self._forget_oldest()

    def remember_all(self, keys: Iterable[bytes], placements: Iterable[Placement]) -> None:
        self.cache.update(zip(keys, placements, strict=True))
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        cache = self.cache
        with suppress(KeyError):  # another thread was faster
            while len(cache) > self.cache_entries_max:
                cache.popitem(last=False)

    def forget(self, key: bytes, placement: Placement | None = None) -> None:
        """Drop a cached placement; with `placement` only if it is still that one."""
        if placement is None or self.cache.get(key) is placement:
            self.cache.pop(key, None)

    def learn(self, topology: TopologyIs) -> None:
        self.topology_version = topology.version
        self.term = topology.term
        self.endpoints = {endpoint.segment: endpoint for endpoint in topology.segments}
        here = [one.labels for one in topology.segments if one.host_id == self.host_id]
        self._near = self._labels or frozenset(pair for one in here for pair in one.items())
        self._by_incarnation = {one.incarnation: one for one in topology.segments}
        self._ranks = {}
        memory = [one for one in topology.segments if one.alive and one.medium == MEMORY]
        self.nodes_up = len({one.node for one in memory})

    def rank(self, port: Port) -> Rank:
        """Of copies at a port, by medium and place."""
        ranks, incarnation = self._ranks, port.incarnation
        known = ranks.get(incarnation)
        if known is None:
            endpoint = self._by_incarnation.get(incarnation)
            here = endpoint is not None and endpoint.host_id == self.host_id
            known = ranks[incarnation] = placed(port, self._distance(endpoint, here), here)
        return known

    def _distance(self, endpoint: SegmentEndpoint | None, here: bool) -> int:
        """The more labels (rack, zone) a segment's node shares with this client's place, the
        nearer. On one host only those count that this client was given: which part of the host
        (numa) it runs on is known to nobody else."""
        if endpoint is None:
            return 0
        return len((self._labels if here else self._near) - endpoint.labels.items())

    def port(self, segment: int) -> Port | None:
        """The port to a segment, opened on first use. None: unknown or cannot be opened. Raises
        Closed to a call that is still under way in another thread when the client is closed."""
        endpoint = self.endpoints.get(segment)
        if endpoint is None:
            return None
        known = self._ports.get(endpoint.incarnation)
        if known is not None and _same_way(known[1], known[0], endpoint):
            return known[1]
        with self._opening:
            if self._closed:  # nobody would close it again
                raise Closed("this pool was closed; connect again")
            return self._open(endpoint)

    def _open(self, endpoint: SegmentEndpoint) -> Port | None:
        known = self._ports.get(endpoint.incarnation)
        if known is not None:
            if _same_way(known[1], known[0], endpoint):  # opened by another thread meanwhile
                return known[1]
            with suppress(BufferError):  # open views keep their mapping; we go another way
                known[1].close()
        try:
            port = self._open_port(endpoint)
        except OSError:
            return None
        self._ports[endpoint.incarnation] = (endpoint, port)
        return port

    def to_tell(self, now: float, after_s: float) -> bool:
        """Whether reads, or what they took, wait to be told for so long."""
        waits = len(self.touches) and now - self.touches.oldest >= after_s
        return bool(waits) or now - self.untold.told_at >= after_s

    def read_times(self, now: float) -> list[ReadTimes]:
        """What reads took since this was asked last, for the master."""
        return self.untold.take([port for _, port in list(self._ports.values())], now)

    def close(self) -> None:
        with self._opening:
            self._closed = True
            for _, port in self._ports.values():
                with suppress(BufferError):  # open views keep their mapping until they close
                    port.close()
            self._ports.clear()
        self.cache.clear()
