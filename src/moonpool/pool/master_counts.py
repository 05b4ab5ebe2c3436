"""What the master has answered, by kind and status: the hits, and the misses with their reasons.

It reads the status columns of replies on their way out. Counting decides nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from moonpool.core.exposition import Histogram
from moonpool.pool import messages as m
from moonpool.pool.columns import i32
from moonpool.pool.master_requests import Asked
from moonpool.pool.read_times import Told

_PUTS: Final = tuple(status.name.lower() for status in m.PutStatus)
_LOOKUPS: Final = tuple(status.name.lower() for status in m.LookupStatus)


class AnswerCounts:
    """Per key, not per request; of this master since it started."""

    def __init__(self) -> None:
        self.lookups: Counter[str] = Counter()
        """By LookupStatus. Reads of placements that a client remembers ask nobody."""
        self.puts: Counter[str] = Counter()
        """By PutStatus, `granted` left out: what a granted key came to is counted at its commit."""
        self.exists: Counter[str] = Counter()
        self.reads = 0
        """Objects that clients say they have read, also without asking (touches)."""
        self.read_bytes = 0
        self.failures = 0
        """Requests answered with an error."""
        self.handling_s = Histogram()
        """Time of a request in the master; the shell has the clock."""
        self.read_seconds = Told()
        """Time of reads at clients, as they say."""

    def read(self, objects: int, nbytes: int) -> None:
        self.reads += objects
        self.read_bytes += nbytes

    def touch(self, asked: Asked, call: m.Touch) -> m.Done:
        """What was read is applied before any request; here only what it took is taken down."""
        self.read_seconds.hear(call.times)
        return m.Done(i32(call.touches.row).size)

    def answered(self, reply: m.Message) -> None:
        if isinstance(reply, m.Found):
            _add(self.lookups, reply.status, _LOOKUPS)
        elif isinstance(reply, m.Committed):
            _add(self.puts, reply.status, _PUTS)
        elif isinstance(reply, m.Reserved):
            if any(reply.status):  # GRANTED is 0
                _add(self.puts, reply.status, _PUTS)
                del self.puts["granted"]
        elif isinstance(reply, m.Existence):
            found = reply.found.count(1)
            self.exists["found"] += found
            self.exists["absent"] += len(reply.found) - found
        elif isinstance(reply, m.Failure):
            self.failures += 1

    def stat(self) -> dict[str, object]:
        """As `stat` shows them."""
        return {
            "reads": self.reads,
            "read_bytes": self.read_bytes,
            "failures": self.failures,
            "answers": {
                "lookups": dict(self.lookups),
                "puts": dict(self.puts),
                "exists": dict(self.exists),
            },
            "handling_s": self.handling_s.as_dict(),
            "read_s": self.read_seconds.stat(),
        }


def _add(counts: Counter[str], column: bytes, words: tuple[str, ...]) -> None:
    """The u8 column into `counts`, by the statuses' names."""
    if not column:
        return
    if column.count(column[0]) == len(column):  # mostly all keys have one status
        counts[words[column[0]]] += len(column)
        return
    for code in set(column):
        counts[words[code]] += column.count(code)
