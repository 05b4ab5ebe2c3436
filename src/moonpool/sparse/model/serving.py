"""Clients that ask again and again, one queue of fetches, one group that decodes in lock-step.

Pure and exact for its assumptions: between two events (a request joins, one ends, the queue of
fetches runs dry) every step takes the same time, so time is moved from event to event.

    step = floor + batch * request_step, longer while a fetch runs: divided by `fetching_speed`

A request waits for its turn in the queue, is fetched, waits `fixed_s`, joins, and leaves after
`outputs` steps; its client then asks for the next one at once.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple


class Side(NamedTuple):
    """One system under load, in seconds."""

    fetch_s: float
    """Of a request, in the queue of one server."""
    fixed_s: float
    """Of every request, beside the queue: admission, and the first rows of its first step."""
    floor_s: float
    request_step_s: float
    fetching_speed: float = 1.0
    """Of decode while anything is fetched; 1: untouched."""


class Load(NamedTuple):
    clients: int
    outputs: int
    waves: int
    """Requests of each client."""


class Served(NamedTuple):
    """Means over requests; throughput over the whole run."""

    tokens_per_s: float
    ttft_s: float
    tbt_s: float


def serve(side: Side, load: Load) -> Served:
    """All clients ask at time 0."""
    run = _Run(side, load)
    for _ in range(load.clients):
        run.ask(0.0)
    while run.active or run.joining:
        run.next_event()
    requests = load.clients * load.waves
    return Served(
        requests * load.outputs / run.now, run.ttft_s / requests, run.decode_s / run.steps
    )


class _Run:
    def __init__(self, side: Side, load: Load) -> None:
        self._side = side
        self._load = load
        self._fetch_free_at = 0.0
        self._asked = 0
        self._progress = 0.0  # steps since the start
        self.now = 0.0
        self.joining: list[tuple[float, float]] = []  # (when, asked at)
        self.active: list[tuple[float, float]] = []  # (progress at its end, when it joined)
        self.ttft_s = 0.0
        self.decode_s = 0.0
        self.steps = 0

    def ask(self, at: float) -> None:
        if self._asked == self._load.clients * self._load.waves:
            return
        self._asked += 1
        self._fetch_free_at = max(at, self._fetch_free_at) + self._side.fetch_s
        heapq.heappush(self.joining, (self._fetch_free_at + self._side.fixed_s, at))

    def next_event(self) -> None:
        step_s = self._step_s()
        at = self.joining[0][0] if self.joining else float("inf")
        if self.active:
            at = min(at, self.now + max(0.0, self.active[0][0] - self._progress) * step_s)
            if self.now < self._fetch_free_at:
                at = min(at, self._fetch_free_at)
            self._progress += (at - self.now) / step_s
        self.now = at
        while self.active and self.active[0][0] <= self._progress + 1e-9:
            _, joined = heapq.heappop(self.active)
            self.decode_s += self.now - joined
            self.steps += self._load.outputs
            self.ask(self.now)
        while self.joining and self.joining[0][0] <= self.now:
            _, asked_at = heapq.heappop(self.joining)
            heapq.heappush(self.active, (self._progress + self._load.outputs, self.now))
            self.ttft_s += self.now + self._step_s() - asked_at

    def _step_s(self) -> float:
        side = self._side
        step_s = side.floor_s + len(self.active) * side.request_step_s
        return step_s / side.fetching_speed if self.now < self._fetch_free_at else step_s
