"""What a client knows: placements, topology, reads not yet reported. No I/O, no threads.

The placement cache is a hint. Generations make a stale entry harmless: it answers "look again".
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from moonpool.pool.messages import SegmentEndpoint, TopologyIs, Touches
from moonpool.pool.ports import Port


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
    """Reads to report, oldest first, bounded: when full the oldest are forgotten."""

    def __init__(self, entries_max: int) -> None:
        self.entries_max = entries_max
        self._rows: list[int] = []
        self._sequences: list[int] = []
        self.oldest: float = 0.0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: int, sequence: int, now: float) -> None:
        if not self._rows:
            self.oldest = now
        self._rows.append(row)
        self._sequences.append(sequence)
        if len(self._rows) > self.entries_max:
            self._shorten()

    def extend(self, rows: Iterable[int], sequences: Iterable[int], now: float) -> None:
        """As many reads, oldest first."""
        if not self._rows:
            self.oldest = now
        self._rows.extend(rows)
        self._sequences.extend(sequences)
        if len(self._rows) > self.entries_max:
            self._shorten()

    def _shorten(self) -> None:
        del self._rows[: -self.entries_max // 2]
        del self._sequences[: -self.entries_max // 2]

    def take(self) -> Touches:
        """Everything logged so far, as a column; the log is empty afterwards."""
        if not self._rows:
            return Touches()
        rows, sequences = self._rows, self._sequences
        self._rows, self._sequences = [], []
        return Touches(np.array(rows, np.int32).tobytes(), np.array(sequences, np.uint64).tobytes())


def _same_way(port: Port, before: SegmentEndpoint, now: SegmentEndpoint) -> bool:
    """A node that was restarted has another TCP port, but its mapped file is the one we have."""
    if port.local:
        return (before.unix, before.path) == (now.unix, now.path)
    return before.tcp == now.tcp


class ClientState:
    """Shared by all calls of one client. The shell guards it with a lock if it has threads."""

    def __init__(
        self,
        host_id: str,
        open_port: Callable[[SegmentEndpoint], Port],
        *,
        cache_entries_max: int = 1_000_000,
        touches_max: int = 65_536,
    ) -> None:
        self.host_id = host_id
        self.cache: OrderedDict[bytes, Placement] = OrderedDict()
        self.cache_entries_max = cache_entries_max
        self.touches = TouchLog(touches_max)
        self.forgotten: deque[Any] = deque()  # attempts and claims of lost write sessions
        self.topology_version = -1
        self.term = 0
        self.endpoints: dict[int, SegmentEndpoint] = {}
        self._open_port = open_port
        self._ports: dict[bytes, tuple[SegmentEndpoint, Port]] = {}

    def remember(self, key: bytes, placement: Placement) -> None:
        cache = self.cache
        cache[key] = placement
        if len(cache) > self.cache_entries_max:
            cache.popitem(last=False)

    def remember_all(self, keys: Iterable[bytes], placements: Iterable[Placement]) -> None:
        cache = self.cache
        cache.update(zip(keys, placements, strict=True))
        for _ in range(len(cache) - self.cache_entries_max):
            cache.popitem(last=False)

    def forget(self, key: bytes, placement: Placement | None = None) -> None:
        """Drop a cached placement; with `placement` only if it is still that one."""
        if placement is None or self.cache.get(key) is placement:
            self.cache.pop(key, None)

    def learn(self, topology: TopologyIs) -> None:
        self.topology_version = topology.version
        self.term = topology.term
        self.endpoints = {endpoint.segment: endpoint for endpoint in topology.segments}

    def port(self, segment: int) -> Port | None:
        """The port to a segment, opened on first use. None: unknown or cannot be opened."""
        endpoint = self.endpoints.get(segment)
        if endpoint is None:
            return None
        known = self._ports.get(endpoint.incarnation)
        if known is not None:
            if _same_way(known[1], known[0], endpoint):
                return known[1]
            with suppress(BufferError):  # open views keep their mapping; we go another way
                known[1].close()
        try:
            port = self._open_port(endpoint)
        except OSError:
            return None
        self._ports[endpoint.incarnation] = (endpoint, port)
        return port

    def close(self) -> None:
        for _, port in self._ports.values():
            with suppress(BufferError):  # open views keep their mapping until they close
                port.close()
        self._ports.clear()
        self.cache.clear()
