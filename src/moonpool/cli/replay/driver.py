"""One client replays a trace: match, read and verify the hits, write what is missing as a chain.

It believes nothing but bytes. A block counts as hit when it was read back whole in this request
and every byte of it is the stamp of its id; a prefix ends at the first block that is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from moonpool.core.errors import MoonpoolError, Unreachable
from moonpool.planner.replay import Ledger, Outcome
from moonpool.planner.stamps import Stamper
from moonpool.planner.traces import Request, Trace
from moonpool.pool.results import Hit, Miss, MissReason, PrefixMatch, PutResult, PutStatus

FAILURES_IN_A_ROW_MAX: Final = 3
PUTS_SKIPPED_MAX: Final = 1024
# A block that was evicted is absent; a chain longer than the pool ends in a full one. Both are
# the normal life of a small cache and no errors.
_NORMAL_MISSES: Final = (MissReason.ABSENT, MissReason.EVICTED)
_NORMAL_PUT: Final = (PutStatus.STORED, PutStatus.EXISTS, PutStatus.FULL)


class ReplayPool(Protocol):
    """What a replay asks of a pool (moonpool.Pool has it)."""

    def match_prefix(self, keys: Sequence[bytes]) -> PrefixMatch: ...

    def get_many_into(
        self, keys: Sequence[bytes], buffers: Sequence[memoryview]
    ) -> list[Hit | Miss]: ...

    def put_many(
        self,
        keys: Sequence[bytes],
        values: Sequence[memoryview],
        *,
        parents: Literal["chain"],
        parent: bytes | None,
    ) -> list[PutResult]: ...


class Replayer:
    """Replays requests against `pool` and writes what happened into `ledger`."""

    def __init__(
        self,
        pool: ReplayPool,
        trace: Trace,
        stamper: Stamper,
        ledger: Ledger,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.full_blocks = 0
        self._pool = pool
        self._trace = trace
        self._stamper = stamper
        self._ledger = ledger
        self._clock = clock
        self._stored: set[int] = set()
        self._failures = 0
        self._puts_skipped = 0  # of the present pause
        self._puts_pause = 0  # requests without a put after one that reached no node
        longest = max((len(r.hash_ids) for r in trace.requests), default=0)
        self._blocks = np.zeros((longest, stamper.block_bytes), np.uint8)
        self._rows = [row.data for row in self._blocks]

    def run(
        self, before: Callable[[int], None] | None = None, done: Callable[[int], None] | None = None
    ) -> None:
        """Replay every request in file order; `before(i)` and `done(i)` are called around each.

        Raises Unreachable when the pool failed several requests in a row altogether.
        """
        for index, request in enumerate(self._trace.requests):
            if before:
                before(index)
            self._ledger.record(self._answer(request))
            if done:
                done(index)

    def _answer(self, request: Request) -> Outcome:
        try:
            outcome = self._serve(request)
        except MoonpoolError as error:
            self._failures += 1
            self._ledger.error(error.code)
            if self._failures >= FAILURES_IN_A_ROW_MAX:
                raise Unreachable(
                    f"the pool failed {self._failures} requests in a row: {error}"
                ) from error
            return Outcome(request.input_length, 0, 0, 0, 0.0)
        self._failures = 0
        return outcome

    def _serve(self, request: Request) -> Outcome:
        keys = [block_key(block) for block in request.hash_ids]
        ids = np.array(request.hash_ids, np.uint64)
        start = self._clock()
        matched = self._pool.match_prefix(keys).count
        answers = self._pool.get_many_into(keys[:matched], self._rows[:matched])
        seconds = self._clock() - start
        good = self._check(ids[:matched], answers)
        verified = matched if good.all() else int(good.argmin())
        self._explain(request, keys, matched)
        written = 0
        if verified < len(keys):
            self._stamper.fill(ids[verified:], self._blocks[verified : len(keys)])
            start = self._clock()
            results = self._write(keys, verified)
            seconds += self._clock() - start
            written = self._note(request.hash_ids[verified:], results)
        size = self._stamper.block_bytes
        return Outcome(
            request.input_length, verified, int(good.sum()) * size, written * size, seconds
        )

    def _check(self, ids: NDArray[np.uint64], answers: Sequence[Hit | Miss]) -> NDArray[np.bool_]:
        """Which blocks hold what was written under their id; the others become errors."""
        whole = np.zeros(len(ids), np.bool_)
        for index, answer in enumerate(answers):
            if isinstance(answer, Miss):
                self._ledger.error(answer.reason.value)
            else:
                whole[index] = answer.size == self._stamper.block_bytes
        stamped = self._stamper.verify(ids, self._blocks[: len(ids)])
        hits = np.array([isinstance(answer, Hit) for answer in answers], np.bool_)
        good: NDArray[np.bool_] = whole & stamped
        if wrong := int((hits & ~good).sum()):
            self._ledger.error("wrong_bytes", wrong)
        return good

    def _explain(self, request: Request, keys: list[bytes], matched: int) -> None:
        """Why the prefix ended before a block that was stored: evicted, or an error?"""
        if matched == len(keys) or request.hash_ids[matched] not in self._stored:
            return
        (answer,) = self._pool.get_many_into([keys[matched]], [self._rows[matched]])
        if isinstance(answer, Miss) and answer.reason not in _NORMAL_MISSES:
            self._ledger.error(answer.reason.value)

    def _write(self, keys: list[bytes], start: int) -> list[PutResult]:
        if self._puts_skipped < self._puts_pause:
            self._puts_skipped += 1
            return [PutResult(PutStatus.UNREACHABLE)] * (len(keys) - start)
        rows = self._rows[start : len(keys)]
        parent = keys[start - 1] if start else None
        results = self._pool.put_many(keys[start:], rows, parents="chain", parent=parent)
        self._breathe(results)
        return results

    def _breathe(self, results: Sequence[PutResult]) -> None:
        """Ever longer pauses from putting while no node is there: each try waits for one."""
        alone = all(result.status is PutStatus.UNREACHABLE for result in results)
        self._puts_pause = min(2 * self._puts_pause + 1, PUTS_SKIPPED_MAX) if alone else 0
        self._puts_skipped = 0

    def _note(self, ids: list[int], results: Sequence[PutResult]) -> int:
        """Remember what was acknowledged; returns how many blocks were written."""
        written = 0
        for block, result in zip(ids, results, strict=True):
            if result.ok:
                self._stored.add(block)
                written += result.status is PutStatus.STORED
            elif result.status is PutStatus.FULL:
                self.full_blocks += 1
            if result.status not in _NORMAL_PUT:
                self._ledger.error(f"put_{result.status.value}")
        return written


def block_key(block: int) -> bytes:
    """The pool's key of a trace's block; an id names its whole prefix, so one key does too."""
    return b"replay/%016x" % block
