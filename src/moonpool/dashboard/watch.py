"""Looks at the master once in a while and remembers what it counted. It asks for nothing else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

from moonpool.core.admin_section import AdminConfig
from moonpool.core.clock import Clock
from moonpool.core.errors import MoonpoolError
from moonpool.pool.aio import AsyncPool

Figures = Mapping[str, Any]
_SUMS: Final = ("reads", "read_bytes", "requests", "evicted_objects", "next_event")
_STALE_POLLS: Final = 3


class Look(NamedTuple):
    """One `stat` of the master, and when."""

    at: float
    figures: Figures


class Rates(NamedTuple):
    """Between two looks, per second; shares are None where nothing was asked."""

    at: float
    reads: float
    read_bytes: float
    puts: float
    evicted: float
    requests: float
    hit_share: float | None
    committed_bytes: int
    objects: int


class Watch:
    """The last looks, one every `poll_ms`, at most `history_s` of them."""

    def __init__(self, pool: AsyncPool, config: AdminConfig, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._poll_s = config.poll_ms / 1000
        self._looks: deque[Look] = deque(maxlen=max(2, round(config.history_s / self._poll_s)))
        self.why_not = "the master was not asked yet"
        """Why the last look failed; empty: it did not."""

    @property
    def last(self) -> Look | None:
        return self._looks[-1] if self._looks else None

    @property
    def unready(self) -> str:
        """Why a client should not come now; empty: it may."""
        last = self.last
        if last is None:
            return self.why_not
        age_s = self._clock.monotonic() - last.at
        if age_s > _STALE_POLLS * self._poll_s:
            return f"no answer for {age_s:.1f} s: {self.why_not or 'the master was not asked'}"
        if last.figures["recovering"]:
            return "the master is recovering: it still hears its nodes"
        if not any(segment["alive"] for segment in last.figures["segments"].values()):
            return "no node is alive"
        return ""

    def history(self) -> list[Rates]:
        looks = list(self._looks)
        return [rates(before, after) for before, after in zip(looks, looks[1:], strict=False)]

    async def look(self) -> None:
        """Once, now. A master that does not answer is a state, not an error."""
        try:
            figures = await self._pool.stat(timeout_s=max(1.0, self._poll_s))
        except MoonpoolError as error:
            self.why_not = str(error)
            return
        self._looks.append(Look(self._clock.monotonic(), figures))
        self.why_not = ""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._poll_s)


@asynccontextmanager
async def watching(watch: Watch) -> AsyncIterator[Watch]:
    """The watch at work, as long as the block lasts; it has looked once when that begins."""
    await watch.look()
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def rates(before: Look, after: Look) -> Rates:
    """What happened between two looks. Another master counts from 0 again: then since its start."""
    seconds = max(1e-6, after.at - before.at)
    old: Figures = before.figures
    new = after.figures
    if new["term"] != old["term"] or new["requests"] < old["requests"]:
        old = {}
    change = {name: new[name] - old.get(name, 0) for name in _SUMS}
    puts = _stored(new) - _stored(old)
    found, missed = (now - then for now, then in zip(asked(new), asked(old), strict=True))
    # A read of a remembered placement asks nobody and is told later: it is a hit, too.
    hits = max(found, change["reads"])
    return Rates(
        after.at,
        change["reads"] / seconds,
        change["read_bytes"] / seconds,
        puts / seconds,
        change["evicted_objects"] / seconds,
        change["requests"] / seconds,
        hits / (hits + missed) if hits + missed else None,
        new["committed_bytes"],
        new["objects"],
    )


def asked(figures: Figures) -> tuple[int, int]:
    """Keys looked up and found, and those that were a miss, whatever the reason."""
    lookups = figures.get("answers", {}).get("lookups", {})
    found = int(lookups.get("found", 0))
    return found, sum(lookups.values()) - found


def _stored(figures: Figures) -> int:
    return int(figures.get("answers", {}).get("puts", {}).get("committed", 0))
