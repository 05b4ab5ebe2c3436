"""Puts, commits and removals that come during a recovery: answered after it, or at a deadline."""

from __future__ import annotations

from collections.abc import Callable

from moonpool.pool import messages as m
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.columns import u32
from moonpool.pool.effects import Effect, Send
from moonpool.pool.master_limits import DEADLINE_MS, wait_until
from moonpool.pool.master_requests import Asked, commit_request, put_request
from moonpool.pool.master_waits import Held, Holding

Waiting = m.Reserve | m.Commit | m.Remove | m.RemovePrefix | m.RemoveWhere


class HeldCalls:
    """At most `held_max` wait; one more is answered RECOVERING at once. `refuse` makes that answer
    for a put."""

    def __init__(
        self,
        catalog: Catalog,
        refuse: Callable[[m.Reserve, int], m.Reserved],
        held_max: int,
        outbox: list[Effect],
    ) -> None:
        self._catalog = catalog
        self._refuse = refuse
        self._outbox = outbox
        self._held: Holding[Waiting] = Holding(held_max)

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, asked: Asked, message: m.Message, deadline_ms: int) -> bool:
        """Whether it is one that waits; False: answer it now."""
        if isinstance(message, m.Reserve):
            self.put(asked, message, deadline_ms)
        elif isinstance(message, m.Commit):
            self.commit(asked, message, deadline_ms)
        elif isinstance(message, m.Remove | m.RemovePrefix | m.RemoveWhere):
            self.removal(asked, message)
        else:
            return False
        return True

    def put(self, asked: Asked, call: m.Reserve, deadline_ms: int) -> None:
        put_request(call, asked)
        found = self._catalog.exists(call.keys.blob, u32(call.keys.ends), asked.wall_ms)
        known = bool(found.all()) and not call.replace
        held: Held[Waiting] = Held(asked, call, _answered_by(asked.now, deadline_ms))
        if known or not self._held.add(held):
            self._answer(held, asked.wall_ms)

    def commit(self, asked: Asked, call: m.Commit, deadline_ms: int) -> None:
        """What an inventory brought may be the very value that this commit is about. It is not
        acknowledged while an older one may still be read from a node not heard yet."""
        commit_request(call)
        held: Held[Waiting] = Held(asked, call, _answered_by(asked.now, deadline_ms))
        if not self._held.add(held):
            self._answer(held, asked.wall_ms)

    def removal(self, asked: Asked, call: m.Remove | m.RemovePrefix | m.RemoveWhere) -> None:
        """A node not heard yet may still be read from: its lease ends with the recovery."""
        held: Held[Waiting] = Held(asked, call, wait_until(asked.now, call.wait_ms))
        if not self._held.add(held):
            self._answer(held, asked.wall_ms)

    def take_all(self) -> list[Held[Waiting]]:
        """The recovery is over."""
        return self._held.take_all()

    def expire(self, now: float, wall_ms: int) -> None:
        for held in self._held.take_expired(now):
            self._answer(held, wall_ms)

    def forget_session(self, session: int) -> None:
        self._held.forget_session(session)

    @property
    def next_deadline(self) -> float | None:
        return self._held.next_deadline

    def _answer(self, held: Held[Waiting], wall_ms: int) -> None:
        """The recovery still goes on."""
        reply: m.Reply
        match held.message:
            case m.Reserve() as put:
                reply = self._refuse(put, wall_ms)
            case m.Commit() as commit:
                count = len(commit.row) // 4
                reply = m.Committed(bytes([m.PutStatus.STALE_TERM]) * count)
            case m.Remove() as removal:
                count = len(removal.keys.ends) // 4
                reply = m.Removed(bytes([m.RemoveStatus.RECOVERING]) * count)
            case m.RemovePrefix() | m.RemoveWhere():
                reply = m.Failure("not_ready", "the master still hears its nodes; try again")
        self._outbox.append(Send(held.asked.session, held.asked.request, reply))


def _answered_by(now: float, deadline_ms: int) -> float:
    """A little before the caller gives up: an answer that comes with its deadline is not heard."""
    return wait_until(now, deadline_ms * 9 // 10 if deadline_ms > 0 else DEADLINE_MS)
