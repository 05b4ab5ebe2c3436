"""Loading: from the pool into the engine's blocks, each load within a deadline.

Objects that lie in this host's memory are copied once, from where they lie into the engine, and
summed on the way; others come through slabs, where they were verified. A block that is reported as
failed may hold anything, as one that was never filled does: nobody may use it. When a ticket is
over nothing is written for it any more. The engine's thread keeps the GIL busy: the bytes of a wave
move in one call without it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import compress

from moonpool._core import LayerGate
from moonpool.connectors.vllm.counters import Counters
from moonpool.connectors.vllm.layout import Buffer, GroupLayout
from moonpool.connectors.vllm.link import PoolLink
from moonpool.connectors.vllm.metadata import BlockRun, LoadJob, Namespace
from moonpool.connectors.vllm.staging import Slabs
from moonpool.core.clock import Clock, SystemClock
from moonpool.core.errors import MoonpoolError
from moonpool.pool.results import Hit, MissReason
from moonpool.pool.view import View

KeysOf = Callable[[int, Namespace, Sequence[bytes]], list[bytes]]
_BROKEN = {MissReason.UNREACHABLE, MissReason.DEADLINE, MissReason.REFUSED}
WAVE_BYTES = 4 << 20  # less is not worth a second thread
VIEWS_MAX = 240  # of one client in one segment at a time; the rest goes through slabs


def _sources(views: Mapping[int, View]) -> tuple[list[Buffer], list[int]]:
    """Their bytes and CRC-32Cs."""
    return [view.data for view in views.values()], [view.crc for view in views.values()]


class _TooMuchAtOnceError(Exception):
    """Blocks that cannot all be held, as filling them layer by layer would need."""


class Wave:
    """Some blocks of a ticket that travel together."""

    __slots__ = ("bad", "run")

    def __init__(self, run: BlockRun) -> None:
        self.run = run
        self.bad: dict[int, str] = {}  # positions in the run that are not filled, and why

    def give_up(self, positions: Sequence[int], reason: str) -> None:
        self.bad.update(dict.fromkeys(positions, reason))

    def block_ids(self, positions: Iterator[int] | Sequence[int]) -> list[int]:
        return [self.run.block_ids[at] for at in positions]


class Ticket:
    """One request's load. Under way until `done`; then `failed` is complete."""

    def __init__(self, job: LoadJob, waves: int, deadline_s: float, started_s: float) -> None:
        self.job = job
        self.deadline_s = deadline_s
        self.started_s = started_s
        self.failed: list[tuple[int, int, bytes]] = []  # group, block id, digest
        self.cancelled = False
        self.gate = LayerGate()  # told of each layer when they are filled in their order
        self._left = waves
        self._changed = threading.Condition()
        if not waves:
            self.gate.open()

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
        self.gate.wait_for(layer)

    def split(self, waves: int) -> None:
        """One of the waves goes on as so many."""
        with self._changed:
            self._left += waves - 1

    def end(self, wave: Wave) -> bool:
        """It is over; True when it was the last."""
        with self._changed:
            for at in sorted(wave.bad):
                run = wave.run
                self.failed.append((run.group, run.block_ids[at], run.digests[at]))
            self._left -= 1
            if self._left == 0:
                self.gate.open()
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
        """Begin; `by_layer` fills layer after layer where it can, for a step that waits for each of
        them."""
        by_layer = by_layer and len(job.runs) == len(self._layouts) == 1
        by_layer = by_layer and len(job.runs[0]) <= VIEWS_MAX
        fill = self._fill_layers if by_layer else self._fill
        parts = job.runs if by_layer else [part for run in job.runs for part in self._parts(run)]
        now = self._clock.monotonic()
        ticket = Ticket(job, len(parts), now + self._timeout_s, now)
        for part in parts:
            self._threads.submit(self._load, ticket, Wave(part), fill)
        return ticket

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    def _parts(self, run: BlockRun) -> list[BlockRun]:
        """A share for each thread, unless there is little to do or a thread could not pin it."""
        share = -(-len(run) // self._thread_count)
        enough = -(-WAVE_BYTES // self._layouts[run.group].object_bytes)
        size = max(1, min(max(share, enough), VIEWS_MAX // self._thread_count))
        cuts = [slice(at, at + size) for at in range(0, len(run), size)]
        return [BlockRun(run.group, run.block_ids[cut], run.digests[cut]) for cut in cuts]

    def _chunks(self, positions: Sequence[int], layout: GroupLayout) -> Iterator[Sequence[int]]:
        """As many as one slab takes."""
        size = self._slabs.objects(layout.object_bytes)
        for at in range(0, len(positions), size):
            yield positions[at : at + size]

    # --- on a thread of ours ----------------------------------------------------------------------

    def _load(self, ticket: Ticket, wave: Wave, fill: Callable[[Ticket, Wave], None]) -> None:
        try:
            fill(ticket, wave)
        except _TooMuchAtOnceError:
            parts = self._parts(wave.run)
            ticket.split(len(parts))
            for part in parts:
                self._threads.submit(self._load, ticket, Wave(part), self._fill)
            return
        except Exception:  # a bug of ours must not cost more than the time to compute the blocks
            self._log.exception("Moonpool: loading blocks of %s failed", ticket.request_id)
            wave.give_up(range(len(wave.run)), "other")
        for reason, count in Counter(wave.bad.values()).items():
            self._counters.add("load_failed_blocks", count, reason=reason)
        filled = len(wave.run) - len(wave.bad)
        self._counters.add("loaded_bytes", filled * self._layouts[wave.run.group].object_bytes)
        if ticket.end(wave):
            self._counters.add("loads")
            self._counters.add("load_seconds", self._clock.monotonic() - ticket.started_s)

    def _fill(self, ticket: Ticket, wave: Wave) -> None:
        """Block after block."""
        layout = self._layouts[wave.run.group]
        good: set[int] = set()
        with ExitStack() as held:
            if views := self._views(ticket, wave, held):
                sound = layout.scatter(wave.block_ids([*views]), *_sources(views))
                good.update(compress(views, sound))
        rest = [at for at in range(len(wave.run)) if at not in good]
        for chunk in self._chunks(rest, layout):
            with ExitStack() as held:
                found = self._fetch(ticket, wave, chunk, held)
                layout.scatter(wave.block_ids([*found]), [*found.values()])

    def _fill_layers(self, ticket: Ticket, wave: Wave) -> None:
        """Layer after layer, once there is something of all that can be had. What turns out to be
        corrupt has been computed with by then, so it failed, whoever else may have it."""
        layout = self._layouts[wave.run.group]
        with ExitStack() as held:
            views = self._views(ticket, wave, held)
            objects, crcs = _sources(views)
            at_of = [*views]
            rest = [at for at in range(len(wave.run)) if at not in views]
            chunks = list(self._chunks(rest, layout))
            # Who holds slabs while it waits for more must be sure to get them.
            if len(chunks) > self._slabs.limit // self._thread_count:
                raise _TooMuchAtOnceError
            for chunk in chunks:
                found = self._fetch(ticket, wave, chunk, held)
                at_of += found
                objects += found.values()
            sound = layout.scatter(wave.block_ids(at_of), objects, crcs, ticket.gate)
        corrupt = [at for at, good in zip(at_of, sound, strict=True) if not good]
        for chunk in self._chunks(corrupt, layout):
            with ExitStack() as held:  # for the pool to hear of it
                self._fetch(ticket, wave, chunk, held)
            wave.give_up(chunk, str(MissReason.CORRUPT))

    def _views(self, ticket: Ticket, wave: Wave, held: ExitStack) -> dict[int, View]:
        """By position, the objects that lie in this host's memory, not verified."""
        pool, left = self._link.pool(), self._left(ticket)
        if pool is None or left <= 0 or ticket.cancelled:
            return {}
        try:
            views = pool.view_many(self._keys(ticket, wave, range(len(wave.run))), timeout_s=left)
        except MoonpoolError as error:
            self._link.failed(error)
            return {}
        if self._left(ticket) <= 0:
            self._link.failed("no answer within load_timeout_ms")
        found = {}
        for at, view in enumerate(views):
            if view is not None:
                held.callback(view.close)
                assert view.data is not None
                if view.data.nbytes == self._layouts[wave.run.group].object_bytes:
                    found[at] = view
        return found

    def _fetch(
        self, ticket: Ticket, wave: Wave, positions: Sequence[int], held: ExitStack
    ) -> dict[int, Buffer]:
        """By position, copies of objects in a slab, verified; the others are given up."""
        pool, left = self._link.pool(), self._left(ticket)
        if ticket.cancelled or left <= 0 or pool is None:
            why = "cancelled" if ticket.cancelled else "deadline" if left <= 0 else "away"
            wave.give_up(positions, why)
            return {}
        slab = self._slabs.take(left)
        if slab is None:
            wave.give_up(positions, "deadline")
            return {}
        held.callback(self._slabs.give, slab)
        size = self._layouts[wave.run.group].object_bytes
        targets = [slab[at * size : (at + 1) * size] for at in range(len(positions))]
        try:
            keys = self._keys(ticket, wave, positions)
            answers = pool.get_many_into(keys, targets, timeout_s=max(0.0, self._left(ticket)))
        except MoonpoolError as error:
            self._link.failed(error)
            wave.give_up(positions, "other")
            return {}
        found = {}
        for at, target, answer in zip(positions, targets, answers, strict=True):
            if isinstance(answer, Hit):
                if answer.size == size:
                    found[at] = target
                else:
                    wave.bad[at] = "other"
                continue
            wave.bad[at] = str(answer.reason)
            if answer.reason in _BROKEN:
                self._link.failed(f"{answer.reason} {answer.text}".strip())
        return found

    def _keys(self, ticket: Ticket, wave: Wave, positions: Sequence[int]) -> list[bytes]:
        digests = [wave.run.digests[at] for at in positions]
        return self._keys_of(wave.run.group, ticket.job.namespace, digests)

    def _left(self, ticket: Ticket) -> float:
        return ticket.deadline_s - self._clock.monotonic()
