"""Loading: from the pool through slabs into the engine's blocks, in waves, each within a deadline.

A wave fetches as many whole objects as a slab takes, verified, and only then writes them into the
engine: a block that is reported as failed may be unwritten, never wrong without being reported.
When a ticket is over nothing is written for it any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from moonpool.connectors.vllm.counters import Counters
from moonpool.connectors.vllm.layout import GroupLayout
from moonpool.connectors.vllm.link import PoolLink
from moonpool.connectors.vllm.metadata import BlockRun, LoadJob, Namespace
from moonpool.connectors.vllm.staging import U8, Slabs
from moonpool.core.clock import Clock, SystemClock
from moonpool.core.errors import MoonpoolError
from moonpool.pool.results import Hit, MissReason

KeysOf = Callable[[int, Namespace, Sequence[bytes]], list[bytes]]
_BROKEN = {MissReason.UNREACHABLE, MissReason.DEADLINE, MissReason.REFUSED}


class Wave:
    """Some blocks of a ticket that travel together."""

    __slots__ = ("bad", "run", "slab")

    def __init__(self, run: BlockRun) -> None:
        self.run = run
        self.slab: U8 | None = None
        self.bad: set[int] = set()  # positions in the run


class Ticket:
    """One request's load. Under way until `done`; then `failed` is complete."""

    def __init__(
        self, job: LoadJob, waves: list[Wave], deadline_s: float, started_s: float
    ) -> None:
        self.job = job
        self.waves = waves
        self.deadline_s = deadline_s
        self.started_s = started_s
        self.failed: list[tuple[int, int, bytes]] = []  # group, block id, digest
        self.cancelled = False
        self._left = len(waves)
        self._layers = 0
        self._changed = threading.Condition()

    @property
    def request_id(self) -> str:
        return self.job.request_id

    @property
    def done(self) -> bool:
        with self._changed:
            return self._left == 0

    def wait(self) -> None:
        """Every wave ends by the ticket's deadline, so this does."""
        with self._changed:
            self._changed.wait_for(lambda: self._left == 0)

    def wait_for_layer(self, layer: int) -> None:
        """Until this layer (position in its group) of every block is in place, or has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._left == 0 or self._layers > layer)

    def layer_is_in(self, layers: int) -> None:
        with self._changed:
            self._layers = layers
            self._changed.notify_all()

    def end(self, waves: Sequence[Wave]) -> bool:
        """These waves are over; True when they were the last."""
        with self._changed:
            for wave in waves:
                columns = zip(wave.run.block_ids, wave.run.digests, strict=True)
                for at, (block_id, digest) in enumerate(columns):
                    if at in wave.bad:
                        self.failed.append((wave.run.group, block_id, digest))
            self._left -= len(waves)
            self._changed.notify_all()
            return self._left == 0


class Loader:
    """Threads that fill engine blocks from the pool."""

    def __init__(
        self,
        layouts: Sequence[GroupLayout],
        keys_of: KeysOf,
        link: PoolLink,
        counters: Counters,
        *,
        buffer_bytes: int,
        threads: int,
        timeout_s: float,
        log: logging.Logger,
        clock: Clock | None = None,
    ) -> None:
        self._layouts = layouts
        self._keys_of = keys_of
        self._link = link
        self._counters = counters
        self._timeout_s = timeout_s
        self._log = log
        self._clock = clock or SystemClock()
        self._slabs = Slabs(max(layout.object_bytes for layout in layouts), buffer_bytes)
        self._thread_count = threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="moonpool-load")

    def start(self, job: LoadJob, *, by_layer: bool = False) -> Ticket:
        """Begin; `by_layer` fills layer after layer, for a step that waits for each of them."""
        now = self._clock.monotonic()
        waves = [Wave(part) for run in job.runs for part in self._parts(run)]
        ticket = Ticket(job, waves, now + self._timeout_s, now)
        # Who holds slabs while it waits for more must be sure to get them.
        fits = len(waves) <= self._slabs.limit // self._thread_count
        if by_layer and fits and len(self._layouts) == 1:
            self._threads.submit(self._load_by_layer, ticket)
        else:
            for wave in waves:
                self._threads.submit(self._load_wave, ticket, wave)
        return ticket

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    def _parts(self, run: BlockRun) -> list[BlockRun]:
        size = self._slabs.objects(self._layouts[run.group].object_bytes)
        return [
            BlockRun(run.group, run.block_ids[at : at + size], run.digests[at : at + size])
            for at in range(0, len(run), size)
        ]

    def _load_wave(self, ticket: Ticket, wave: Wave) -> None:
        try:
            self._fetch(ticket, wave)
            for layer in range(len(self._layouts[wave.run.group])):
                self._scatter(wave, layer)
        except Exception:
            self._unexpected(ticket, [wave])
        finally:
            self._release(wave)
            self._end(ticket, [wave])

    def _load_by_layer(self, ticket: Ticket) -> None:
        try:
            for wave in ticket.waves:
                self._fetch(ticket, wave)
            for layer in range(len(self._layouts[ticket.waves[0].run.group])):
                for wave in ticket.waves:
                    self._scatter(wave, layer)
                ticket.layer_is_in(layer + 1)
        except Exception:
            self._unexpected(ticket, ticket.waves)
        finally:
            for wave in ticket.waves:
                self._release(wave)
            self._end(ticket, ticket.waves)

    def _fetch(self, ticket: Ticket, wave: Wave) -> None:
        """Fill the wave's slab; positions that could not be filled go to `bad`."""
        run, size = wave.run, self._layouts[wave.run.group].object_bytes
        left = ticket.deadline_s - self._clock.monotonic()
        pool = self._link.pool()
        if ticket.cancelled or left <= 0 or pool is None:
            return self._fail(wave, _why_not(ticket.cancelled, left))
        wave.slab = self._slabs.take(left)
        left = ticket.deadline_s - self._clock.monotonic()
        if wave.slab is None or left <= 0:
            return self._fail(wave, "deadline")
        targets = [wave.slab[at * size : (at + 1) * size] for at in range(len(run))]
        keys = self._keys_of(run.group, ticket.job.namespace, run.digests)
        try:
            answers = pool.get_many_into(keys, targets, timeout_s=left)
        except MoonpoolError as error:
            self._link.failed(error)
            return self._fail(wave, "other")
        misses = {}
        for at, answer in enumerate(answers):
            if isinstance(answer, Hit):
                if answer.size != size:
                    misses[at] = "other"
            else:
                misses[at] = str(answer.reason)
                if answer.reason in _BROKEN:
                    self._link.failed(f"{answer.reason} {answer.text}".strip())
        wave.bad = set(misses)
        for reason in misses.values():
            self._counters.add("load_failed_blocks", reason=reason)
        self._counters.add("loaded_bytes", (len(run) - len(misses)) * size)

    def _unexpected(self, ticket: Ticket, waves: Sequence[Wave]) -> None:
        """A bug of ours must not cost more than the time to compute the blocks."""
        self._log.exception("Moonpool: loading blocks of %s failed", ticket.request_id)
        for wave in waves:
            self._fail(wave, "other")

    def _fail(self, wave: Wave, reason: str) -> None:
        wave.bad = set(range(len(wave.run)))
        self._counters.add("load_failed_blocks", len(wave.run), reason=reason)

    def _scatter(self, wave: Wave, layer: int) -> None:
        if wave.slab is None:
            return
        layout, run = self._layouts[wave.run.group], wave.run
        for start, stop in _spans(len(run), wave.bad):
            size = layout.object_bytes
            objects = wave.slab[start * size : stop * size]
            layout.scatter(layer, run.block_ids[start:stop], objects)

    def _release(self, wave: Wave) -> None:
        if wave.slab is not None:
            self._slabs.give(wave.slab)
            wave.slab = None

    def _end(self, ticket: Ticket, waves: Sequence[Wave]) -> None:
        if ticket.end(waves):
            self._counters.add("loads")
            self._counters.add("load_seconds", self._clock.monotonic() - ticket.started_s)


def _why_not(cancelled: bool, left: float) -> str:
    return "cancelled" if cancelled else "deadline" if left <= 0 else "away"


def _spans(count: int, bad: set[int]) -> list[tuple[int, int]]:
    """The runs of positions that are not bad."""
    if not bad:
        return [(0, count)]
    spans, start = [], 0
    for at in [*sorted(bad), count]:
        if at > start:
            spans.append((start, at))
        start = at + 1
    return spans
