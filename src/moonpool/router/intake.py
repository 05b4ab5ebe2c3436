"""What workers publish, applied to the index, and what is wrong with it said aloud. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from moonpool.core.errors import BadInput
from moonpool.router.base import Cleared, Event, Stored
from moonpool.router.fleet import Fleet, Member
from moonpool.router.hashing import prefix_seed
from moonpool.router.index import (
    GUESS_SLOTS,
    POOL_PLACE,
    WALKS_MAX,
    Applied,
    Message,
    PrefixIndex,
)

_CLEARED = b"AllBlocksCleared"


class Intake:
    """Events of all workers. Counts and problems are kept with the member."""

    def __init__(self, fleet: Fleet, index: PrefixIndex) -> None:
        self._fleet = fleet
        self._index = index
        self.renewed_blocks = 0
        """Removed to be told anew, because a worker's own account of their ranges differed."""

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

    def apply_pool_message(self, message: Message, walks_max: int = WALKS_MAX) -> Applied:
        """One message of the pool (`moonpool admin --events`): it names blocks as some engine did,
        and not of which model. Raises BadInput: not a message."""
        place = np.array([POOL_PLACE], np.uint32)
        models = sorted({member.worker.model for member in self._fleet.members.values()}) or [""]
        try:
            message = self._cleared_first(message)
            applied = [
                self._index.apply(message, place, prefix_seed(model), 0, walks_max)
                for model in models
            ]
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise BadInput(f"the pool: no KV event message: {error}") from None
        return applied[0]

    def _cleared_first(self, message: Message) -> Message:
        """A whole account begins with its clearing: done once, not for each model again."""
        batch = msgspec.msgpack.decode(message, type=tuple[float, list[msgspec.Raw], int])
        if not batch[1] or not _clears(batch[1][0]):
            return message
        self.forget_pool()
        return msgspec.msgpack.encode((batch[0], batch[1][1:], batch[2]))

    def forget_pool(self) -> None:
        """What was known of it is no longer trusted: events were lost, or it was restarted."""
        self._index.drop(POOL_PLACE)

    def apply_message(
        self, worker_id: str, message: Message, walks_max: int = WALKS_MAX
    ) -> Applied:
        """One message of an engine. Raises BadInput: unknown worker, or not a message."""
        member = self._fleet.member(worker_id)
        try:
            applied = self._index.apply(
                message,
                np.array(member.places, np.uint32),
                prefix_seed(member.worker.model),
                member.block_size,
                walks_max,
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
        self.renewed_blocks += applied.renewed
        return self._compare(member, applied) if applied.accounts else applied

    def forget(self, worker_id: str, rank: int = -1) -> None:
        """What was known of its cache is no longer trusted: it restarted, or events were lost."""
        self.apply(worker_id, Cleared(rank))

    def _heard(self, member: Member) -> None:
        member.events += 1
        if member.events == 1:  # from now on its own word counts, not what was guessed before
            self._fleet.first_heard()
            for place in member.places:
                for slot in GUESS_SLOTS:
                    self._index.drop_at(place, slot)
        member.silent_decisions = 0
        member.problems.pop("silent", None)

    def _compare(self, member: Member, applied: Applied) -> Applied:
        """What of a worker's accounts counts: none where the index had no room for all it said."""
        evicted = self._index.stat()["evicted"]
        if evicted != member.evicted_before:
            member.evicted_before = evicted
            return applied._replace(accounts=[])
        for place, slot, differ in applied.accounts:
            if differ.any():
                member.drifted[place, slot] = int(differ.sum())
            else:
                member.drifted.pop((place, slot), None)
        return applied


def _clears(event: msgspec.Raw) -> bool:
    """The event in either form, a map or an array, is AllBlocksCleared."""
    if _CLEARED not in bytes(event):
        return False
    match msgspec.msgpack.decode(event):
        case {"type": kind} | [kind, *_]:
            return bool(kind == _CLEARED.decode())
    return False


def _place_of_rank(member: Member, rank: int) -> int:
    if not 0 <= rank < len(member.places):
        raise BadInput(
            f"worker {member.worker.id!r} has {len(member.places)} ranks, none of number {rank}"
        )
    return member.places[rank]
