"""Following one worker's event stream: what to apply, what to ask again. Pure.

Messages are numbered from 0 by their publisher.

    expected -> apply           what comes next
    higher   -> ask for the gap, hold the newer ones back, bounded
    lower    -> late or repeated: passed over; 0 again, twice in order: the publisher restarted

Of a gap that cannot be filled nothing is known: the worker's blocks are forgotten, and everything
that its publisher still has is asked for.

A publisher may also be asked now and then whether there is more than came: one whose live socket
reaches nobody (vLLM dials an endpoint without a wildcard, it does not listen there) looks like one
that does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from moonpool.router.index import Message


class Act(Enum):
    """What to do with a worker."""

    APPLY = "apply"
    """Apply the message."""
    REPLAY = "replay"
    """Ask its publisher for messages from `sequence` on."""
    FORGET = "forget"
    """What is known of its cache is wrong; drop it."""


class Step(NamedTuple):
    """One thing to do, in order."""

    act: Act
    sequence: int = 0
    message: Message = b""


@dataclass(slots=True)
class FeedCounts:
    """Numbers only grow."""

    messages: int = 0
    gaps: int = 0
    replayed: int = 0
    lost: int = 0
    """Messages that no replay brought."""
    restarts: int = 0
    repeated: int = 0
    unheard: int = 0
    """Messages that only a look brought, before any came by itself."""


@dataclass(slots=True)
class Feed:
    """Of one publisher. `replays`: it has a replay socket."""

    replays: bool = True
    held_max: int = 1024
    counts: FeedCounts = field(default_factory=FeedCounts)
    _next: int | None = None
    _held: dict[int, Message] = field(default_factory=dict)
    _asked_from: int | None = None
    _looking: bool = False

    @property
    def waiting(self) -> bool:
        """True while a replay is asked for."""
        return self._asked_from is not None

    @property
    def expected(self) -> int:
        """Number of the message that comes next, as far as is known."""
        return self._next or 0

    def start(self) -> list[Step]:
        """A new subscription: whatever was published before is asked for."""
        return self._rebase()

    def receive(self, sequence: int, message: Message) -> list[Step]:
        """A live message."""
        self.counts.messages += 1
        if self._asked_from is not None:
            return self._hold(sequence, message)
        if self._next is None or sequence == self._next:
            self._next = sequence + 1
            return [Step(Act.APPLY, sequence, message)]
        if sequence > self._next:
            return self._gap(sequence, message)
        return self._lower(sequence, message)

    def look(self) -> list[Step]:
        """Ask whether there is more than came by itself."""
        if self._asked_from is not None:
            return []
        self._asked_from, self._looking = self.expected, True
        return [Step(Act.REPLAY, self._asked_from)]

    def replayed(self, messages: Sequence[tuple[int, Message]]) -> list[Step]:
        """The answer to a replay, in order; empty when the publisher has nothing or did not answer.

        Then the messages held back follow. Where the answer begins later than asked, the ones
        between are lost.
        """
        assert self._asked_from is not None, "nothing was asked for"
        wanted, self._asked_from = self._asked_from, None
        known = dict(messages)
        if self._looking and not self.counts.messages:
            self.counts.unheard += len(known)
        self._looking = False
        self.counts.replayed += len(known)
        known.update(self._held)
        self._held.clear()
        if not known:
            self._next = wanted or None
            return []
        steps = []
        first = min(known)
        if first > wanted > 0:
            self.counts.lost += first - wanted
            steps.append(Step(Act.FORGET))
        self._next = None if wanted == 0 else wanted
        for sequence in sorted(known):
            if self._next is not None and sequence < self._next:
                continue
            if self._next is not None and sequence > self._next and sequence != first:
                self.counts.lost += sequence - self._next
                steps.append(Step(Act.FORGET))
            steps.append(Step(Act.APPLY, sequence, known[sequence]))
            self._next = sequence + 1
        return steps

    def _gap(self, sequence: int, message: Message) -> list[Step]:
        assert self._next is not None
        self.counts.gaps += 1
        if not self.replays:
            self.counts.lost += sequence - self._next
            self._next = sequence + 1
            return [Step(Act.FORGET), Step(Act.APPLY, sequence, message)]
        self._asked_from = self._next
        self._held[sequence] = message
        return [Step(Act.REPLAY, self._next)]

    def _lower(self, sequence: int, message: Message) -> list[Step]:
        """A publisher that starts anew counts from 0; an old message that comes again does not
        have the number 0 after a thousand others, and if it had, forgetting costs only misses."""
        if sequence > 0:
            assert self._next is not None
            if self._next - sequence > self.held_max:  # its first messages were lost on the way
                return self._restarted(sequence, message)
            self.counts.repeated += 1
            return []
        return self._restarted(sequence, message)

    def _restarted(self, sequence: int, message: Message) -> list[Step]:
        self.counts.restarts += 1
        self._next = 0
        forget = Step(Act.FORGET)
        if sequence == 0:
            self._next = 1
            return [forget, Step(Act.APPLY, 0, message)]
        return [forget, *self._gap(sequence, message)]

    def _hold(self, sequence: int, message: Message) -> list[Step]:
        if sequence == 0 and self._asked_from:
            # It restarted while it was asked for what it no longer has.
            self._held.clear()
            self._asked_from, self._looking = None, False
            return self._restarted(0, message)
        if len(self._held) < self.held_max:
            self._held[sequence] = message
        return []

    def _rebase(self) -> list[Step]:
        self._held.clear()
        if not self.replays:
            self._next = None
            return []
        self._asked_from = 0
        return [Step(Act.REPLAY, 0)]
