"""Events for who follows the catalog: read at once, or held until there is one."""

from __future__ import annotations

from moonpool.pool import messages as m
from moonpool.pool.catalog.events import EventLog
from moonpool.pool.effects import Effect, Send
from moonpool.pool.master_limits import BATCH_MAX, wait_until
from moonpool.pool.master_requests import Asked
from moonpool.pool.master_waits import Held, Holding
from moonpool.pool.tenancy.scope import told


class Followers:
    """At most `followers_max` requests wait; one more is answered at once with what there is."""

    def __init__(self, log: EventLog, followers_max: int, outbox: list[Effect]) -> None:
        self._log = log
        self._outbox = outbox
        self._held: Holding[m.EventsFrom] = Holding(followers_max)
        self._seen = log.next_sequence

    def __len__(self) -> int:
        return len(self._held)

    def follow(self, asked: Asked, call: m.EventsFrom) -> m.Events | None:
        reply = self._read(asked, call)
        if reply.events or reply.rebase or call.wait_ms <= 0:
            return reply
        held = Held(asked, call, wait_until(asked.now, call.wait_ms))
        return None if self._held.add(held) else reply

    def flush(self) -> None:
        """Answer who waits when something has happened."""
        if len(self._held) and self._log.next_sequence != self._seen:
            self._answer(self._held.take_all())
        self._seen = self._log.next_sequence

    def expire(self, now: float) -> None:
        self._answer(self._held.take_expired(now))

    def forget_session(self, session: int) -> None:
        self._held.forget_session(session)

    @property
    def next_deadline(self) -> float | None:
        return self._held.next_deadline

    def _answer(self, held: list[Held[m.EventsFrom]]) -> None:
        for one in held:
            reply = self._read(one.asked, one.message)
            self._outbox.append(Send(one.asked.session, one.asked.request, reply))

    def _read(self, asked: Asked, call: m.EventsFrom) -> m.Events:
        log = self._log
        limit = min(max(call.limit, 1), BATCH_MAX)
        events, rebase = log.read(call.term, call.sequence, limit)
        following = call.sequence + len(events) if not rebase else log.next_sequence
        return m.Events(told(asked.visitor, events), log.term, following, rebase)
