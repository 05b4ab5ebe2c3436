"""What scheduler and workers tell each other once a step. Plain values: vLLM pickles them."""

from __future__ import annotations

import msgspec


class BlockRun(msgspec.Struct, frozen=True):
    """Blocks of one KV group of one request: `digests[i]` names what is, or is to be, in engine
    block `block_ids[i]`."""

    group: int
    block_ids: list[int]
    digests: list[bytes]

    def __len__(self) -> int:
        return len(self.block_ids)


class Namespace(msgspec.Struct, frozen=True):
    """What separates the blocks of one request from equal tokens of another."""

    adapter: str | None = None
    salt: str | None = None


class LoadJob(msgspec.Struct, frozen=True):
    """Fill these blocks of a request from the pool. `synchronous`: the step that brings the job
    computes with them, layer by layer; otherwise the request is not in a step before it is told."""

    request_id: str
    namespace: Namespace
    runs: list[BlockRun]
    synchronous: bool = False


class SaveJob(msgspec.Struct, frozen=True):
    """Store these blocks, whole after this step. `parents[i]` is the digest before run i's first,
    None where the run begins its chain."""

    request_id: str
    namespace: Namespace
    runs: list[BlockRun]
    parents: list[bytes | None]


class StepPlan(msgspec.Struct, frozen=True):
    """One step of the engine, from the scheduler to every worker.

    `failures_known`: how many reports of failed loads the scheduler had heard when it made the
    plan. A worker that has told more does not store what this plan computes: it may rest on blocks
    that were never filled.
    """

    loads: list[LoadJob]
    saves: list[SaveJob]
    failures_known: int = 0


class WorkerReport(msgspec.Struct, frozen=True):
    """From the workers to the scheduler, after a step in which there was something to tell."""

    failures: int = 0
    """Sum of the reports of failed loads since the workers began."""
    failed: tuple[tuple[int, bytes], ...] = ()
    """(group, digest) of blocks that could not be loaded."""
    orphans: tuple[str, ...] = ()
    """Requests whose blocks the pool refused because those before them are gone from it."""
    stored: tuple[bytes, ...] = ()
    """Digests of the first group that are in the pool now."""

    def aggregate(self, other: WorkerReport) -> WorkerReport:
        """The reports of two workers of one engine as one."""
        return WorkerReport(
            self.failures + other.failures,
            tuple(dict.fromkeys(self.failed + other.failed)),
            tuple(dict.fromkeys(self.orphans + other.orphans)),
            tuple(dict.fromkeys(self.stored + other.stored)),
        )
