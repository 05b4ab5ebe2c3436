"""The worker's side: carries out a step's plan on this process's caches and says what became of it.

    bind -> start_loads (before the forward when one of them is synchronous, else after it)
         -> wait_for_layer / layer_done, layer by layer -> wait_for_saves -> results

Blocks belong to the engine. A load writes only into the blocks of its ticket and only until the
ticket is over; a save reads them only until `wait_for_saves` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moonpool.connectors.vllm.counters import Counters
from moonpool.connectors.vllm.layout import GroupLayout
from moonpool.connectors.vllm.loader import Loader, Ticket
from moonpool.connectors.vllm.metadata import StepPlan, WorkerReport
from moonpool.connectors.vllm.saver import Saver


class Received(NamedTuple):
    """Loads that are over since the last call."""

    finished: set[str]
    """Requests loaded asynchronously, failed ones too."""
    failed: set[str]
    """Of these the ones that lack blocks."""
    bad_blocks: set[int]
    """Engine blocks that were not filled; only with a single group are their numbers unique."""


class PoolWorker:
    """One worker process (or thread) of the engine; called from its model runner only."""

    def __init__(
        self,
        layouts: Sequence[GroupLayout],
        loader: Loader,
        saver: Saver,
        counters: Counters,
        block_sizes: Sequence[int],
    ) -> None:
        self._layer_of = {name: layout.index[name] for layout in layouts for name in layout.names}
        self._single = len(layouts) == 1
        self._loader = loader
        self._saver = saver
        self._counters = counters
        self._block_size = block_sizes[0]
        self._plan = StepPlan([], [])
        self._waiting: list[Ticket] = []  # synchronous loads of this step
        self._tickets: dict[str, Ticket] = {}  # asynchronous ones under way
        self._failures = 0
        self._failed: list[tuple[int, bytes]] = []
        self._bad_blocks: set[int] = set()

    def bind(self, plan: StepPlan) -> None:
        """A step begins. Blocks that it makes whole may be read once their layers are done."""
        self._plan = plan
        if plan.saves:
            self._saver.begin(plan.saves)

    def start_loads(self) -> None:
        for job in self._plan.loads:
            if job.synchronous:
                self._waiting.append(self._loader.start(job, by_layer=True))
            else:
                self._tickets[job.request_id] = self._loader.start(job)

    def wait_for_layer(self, name: str) -> None:
        """Until this step's own loads have filled this layer."""
        layer = self._layer_of.get(name)
        if layer is not None:
            for ticket in self._waiting:
                ticket.wait_for_layer(layer)

    def layer_done(self, name: str) -> None:
        self._saver.layer_done(name)

    def wait_for_saves(self) -> None:
        """The step's forward is over: nothing reads the engine's blocks any more on return."""
        waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            ticket.wait()
        bad = [ticket for ticket in waiting if self._settle(ticket)]
        if bad:
            self._failures += 1
        # What was computed on unfilled blocks is wrong, and so is what plans build on it that were
        # made before the scheduler knows.
        self._saver.finish_step(self._plan.failures_known >= self._failures)

    def received(self, ended_requests: set[str]) -> Received:
        """`ended_requests`: no use in loading for them any further."""
        for request_id in ended_requests & self._tickets.keys():
            self._tickets[request_id].cancelled = True
        over = {name for name, ticket in self._tickets.items() if ticket.done}
        failed = {name for name in over if self._settle(self._tickets.pop(name))}
        bad_blocks, self._bad_blocks = self._bad_blocks, set()
        if self._single:
            return Received(over, set(), bad_blocks)
        return Received(over, failed, set())

    def report(self) -> WorkerReport | None:
        """For the scheduler's side; None: nothing new."""
        failed, self._failed = self._failed, []
        orphans, stored = self._saver.take_orphans(), self._saver.take_stored()
        if not (failed or orphans or stored):
            return None
        return WorkerReport(self._failures, tuple(failed), orphans, stored)

    @property
    def loading(self) -> int:
        """Asynchronous loads under way."""
        return len(self._tickets)

    def close(self) -> None:
        self._loader.close()
        self._saver.close()

    def _settle(self, ticket: Ticket) -> bool:
        """Book a load that is over; True: some blocks were not filled."""
        for group, block_id, digest in ticket.failed:
            self._failed.append((group, digest))
            self._bad_blocks.add(block_id)
        loaded = sum(len(run) for run in ticket.job.runs if run.group == 0)
        loaded -= sum(group == 0 for group, _, _ in ticket.failed)
        self._counters.add("loaded_tokens", loaded * self._block_size)
        return bool(ticket.failed)
