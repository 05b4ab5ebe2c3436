"""Who leads: decisions from what stands in etcd, without a clock or a connection.

    PREFIX/leader   who leads under which term; written once, when the lead is taken
    PREFIX/beat     rewritten by the leader several times a lease, with the nodes it knows
    PREFIX/masters/ each master that runs, under an etcd lease of its own

A master that stands by takes the lead when `beat` has not changed for a lease of its own clock; it
swaps both keys against the revisions it read, so that one of several wins. The leader counts its
lease from before it asked for the renewal: nobody takes the lead before that has passed. No clock
is compared with another one, and etcd's own (coarser) leases decide nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

STEPS_A_LEASE = 4  # the leader renews so often
LOOKS_A_LEASE = 8  # the others look so often
SURE = 0.9  # share of its lease that a leader relies on: clocks run at different rates


class LeaderRecord(msgspec.Struct, frozen=True):
    """The value of PREFIX/leader."""

    term: int
    address: str
    instance: str


class Beat(msgspec.Struct, frozen=True):
    """The value of PREFIX/beat. `nodes` may be read from by clients of this leader; `resigned`: it
    leads no more, and whoever comes next takes the lead at once."""

    number: int
    nodes: tuple[str, ...] = ()
    resigned: bool = False


class Seen(NamedTuple):
    """What stood in etcd at one moment; revisions are 0 for what is not there."""

    leader: LeaderRecord | None
    leader_revision: int
    beat: Beat
    beat_revision: int
    masters: tuple[str, ...] = ()


class Patience:
    """A master that stands by: when it takes the lead."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._revisions = (-1, -1)
        self._since = 0.0

    def ripe(self, seen: Seen, asked_at: float, answered_at: float) -> bool:
        """Whether to claim the lead now. `seen` was asked for and came at these moments."""
        revisions = (seen.leader_revision, seen.beat_revision)
        if seen.leader is None or seen.beat_revision == 0 or seen.beat.resigned:
            return True
        if revisions != self._revisions:
            self._revisions, self._since = revisions, answered_at
            return False
        return asked_at - self._since >= self._lease_s


def next_term(seen: Seen, wall_ms: int, least: int = 0) -> int:
    """Above every term there was: of this etcd, of a time before it (the wall clock), and `least`,
    of a segment that has seen a higher one."""
    before = seen.leader.term if seen.leader is not None else 0
    return max(before + 1, wall_ms, least)
