"""Turns at writing: while more is on its way into the pool than `inflight_bytes_max`, puts wait
and are admitted by the weights of their tenants. A put that waits holds nothing.

A bound on what is on its way is what makes the order of admission matter: without one everybody is
admitted at once, and whoever asks most gets most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from moonpool.pool import messages as m
from moonpool.pool.columns import u8, u64
from moonpool.pool.master_requests import Asked, failure_of
from moonpool.pool.tenancy.fair import FairQueue
from moonpool.pool.tenancy.shares import Shares

OBJECT_COST_BYTES: Final = 4096  # of each key, beside its bytes: small objects are work, too
WAIT_S: Final = 1.0  # at most, then the put is told that its turn did not come
WAITING_MAX: Final = 4096  # puts of one tenant
WAITING_BYTES_MAX: Final = 64 << 20  # their keys and parents, by which a put is as long as it likes


class Waiting(NamedTuple):
    asked: Asked
    call: m.Reserve
    until: float


class Gate:
    """`reserve(asked, call)` decides a put whose turn it is, `refused(call)` is the answer to one
    whose turn did not come."""

    def __init__(
        self,
        shares: Shares,
        inflight_bytes_max: int,
        reserve: Callable[[Asked, m.Reserve], m.Reply],
        refused: Callable[[m.Reserve], m.Reply],
        answer: Callable[[Asked, m.Reply], None],
    ) -> None:
        self._shares = shares
        self._max = inflight_bytes_max
        self._reserve = reserve
        self._refused = refused
        self._answer = answer
        self._queue: FairQueue[Waiting] = FairQueue(
            lambda number: shares.tenants.get(number).weight,
            WAITING_MAX,
            lambda one: _length(one.call),
            WAITING_BYTES_MAX,
        )

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def open(self) -> bool:
        return self._shares.usage.promised_bytes < self._max

    def ask(self, asked: Asked, call: m.Reserve) -> None:
        """Admitted at once when there is room and nobody waits."""
        if self.open and not self._queue:
            self._admit(asked, call)
        elif not self._queue.add(call.tenant, Waiting(asked, call, asked.now + WAIT_S)):
            self._refuse(asked, call)

    def pump(self, now: float, wall_ms: int) -> None:
        """Admit whose turn it is, as far as there is room."""
        while self.open and (turn := self._queue.take()) is not None:
            _, waiting = turn
            self._admit(waiting.asked._replace(now=now, wall_ms=wall_ms), waiting.call)

    def expire(self, now: float) -> None:
        if self._queue:  # who came first waits no longer than the others of its line
            for _, waiting in self._queue.drop_first(lambda one: one.until <= now):
                self._refuse(waiting.asked, waiting.call)

    def forget_session(self, session: int) -> None:
        if self._queue:
            self._queue.drop(lambda one: one.asked.session == session)

    @property
    def next_deadline(self) -> float | None:
        return min((one.until for one in self._queue.first()), default=None)

    def _admit(self, asked: Asked, call: m.Reserve) -> None:
        reply: m.Reply
        try:
            reply = self._reserve(asked, call)
        except (ValueError, IndexError) as error:
            reply = failure_of(error)
        cost = OBJECT_COST_BYTES * max(1, len(call.keys.ends) // 4)
        if isinstance(reply, m.Reserved):
            granted = u8(reply.status) == m.PutStatus.GRANTED
            cost += int(u64(call.sizes)[granted].sum()) * call.replicas
        self._queue.charge(call.tenant, cost)
        self._answer(asked, reply)

    def _refuse(self, asked: Asked, call: m.Reserve) -> None:
        n = len(call.keys.ends) // 4
        self._shares.usage.of(call.tenant).throttled += n
        self._answer(asked, self._refused(call))


def _length(call: m.Reserve) -> int:
    """Bytes it takes to remember the call, about."""
    return (
        len(call.keys.blob) + len(call.keys.ends) + len(call.outside_parents.blob) + len(call.sizes)
    )
