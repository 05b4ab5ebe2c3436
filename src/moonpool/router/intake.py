"""What workers publish, applied to the index, and what is wrong with it said aloud. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from moonpool.core.errors import BadInput
from moonpool.router.base import Cleared, Event, Stored
from moonpool.router.fleet import Fleet, Member
from moonpool.router.hashing import prefix_seed
from moonpool.router.index import GUESS_SLOTS, POOL_PLACE, Applied, PrefixIndex

_ALL: Final = np.ones(256, np.uint8)


class Intake:
    """Events of all workers. Counts and problems are kept with the member."""

    def __init__(self, fleet: Fleet, index: PrefixIndex) -> None:
        self._fleet = fleet
        self._index = index
        self.repaired_blocks = 0
        """Removed because a worker's own account of a range differed."""

    def apply(self, worker_id: str, event: Event) -> None:
        """One event in own hashes. Raises BadInput: unknown worker or rank."""
        member = self._fleet.member(worker_id)
        self._heard(member)
        if isinstance(event, Cleared) and event.rank < 0:
            for place in member.places:
                self._index.drop(place)
            return
        self._apply_at(_place_of_rank(member, event.rank), event)

    def _apply_at(self, place: int, event: Event) -> None:
        if isinstance(event, Cleared):
            self._index.drop(place)
        elif isinstance(event, Stored):
            self._index.store(place, event.tier, event.hashes, event.parent)
        else:
            self._index.remove(place, event.tier, event.hashes)

    def apply_pool(self, events: Iterable[Event]) -> None:
        """Of the pool, which has one place and serves every worker."""
        for event in events:
            self._apply_at(POOL_PLACE, event)

    def apply_message(self, worker_id: str, message: bytes) -> Applied:
        """One message of an engine. Raises BadInput: unknown worker, or not a message."""
        member = self._fleet.member(worker_id)
        try:
            applied = self._index.apply(
                message,
                np.array(member.places, np.uint32),
                prefix_seed(member.worker.model),
                member.block_size,
            )
        except ValueError as error:
            raise BadInput(f"worker {worker_id}: no KV event message: {error}") from None
        self._heard(member)
        if applied.mismatched_events:
            member.problems["block size"] = (
                f"worker {worker_id} publishes blocks of another size than {applied.block_size}"
                " tokens; its events are not applied: set the worker's block_size to the engine's"
            )
        elif applied.block_size and not member.block_size:
            self._fleet.learn_block_size(member, applied.block_size)
        known = sum(1 << group for group in member.groups)
        if applied.groups and not (member.grouped and applied.groups | known == known):
            self._fleet.learn_groups(member, applied.groups)
        for place, slot, counts, hashes in applied.digests:
            self._compare(member, place, slot, counts, hashes)
        return applied

    def forget(self, worker_id: str, rank: int = -1) -> None:
        """What was known of its cache is no longer trusted: it restarted, or events were lost."""
        self.apply(worker_id, Cleared(rank))

    def _heard(self, member: Member) -> None:
        if not member.events:  # from now on its own word counts, not what was guessed before
            for place in member.places:
                for slot in GUESS_SLOTS:
                    self._index.forget_ranges(place, slot, _ALL)
        member.events += 1
        member.silent_decisions = 0
        member.problems.pop("silent", None)

    def _compare(
        self,
        member: Member,
        place: int,
        slot: int,
        counts: np.ndarray[tuple[int], np.dtype[np.uint64]],
        hashes: np.ndarray[tuple[int], np.dtype[np.uint64]],
    ) -> None:
        """Ranges that differ are forgotten here and asked for again (`member.drifted`)."""
        own_counts, own_hashes = self._index.digest(place, slot)
        differ = (own_counts != counts) | (own_hashes != hashes)
        if differ.any():
            self.repaired_blocks += self._index.forget_ranges(place, slot, differ.astype(np.uint8))
            wanted = member.drifted.get((place, slot))
            member.drifted[place, slot] = differ if wanted is None else wanted | differ


def _place_of_rank(member: Member, rank: int) -> int:
    if not 0 <= rank < len(member.places):
        raise BadInput(
            f"worker {member.worker.id!r} has {len(member.places)} ranks, none of number {rank}"
        )
    return member.places[rank]
