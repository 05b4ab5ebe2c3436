"""The workers, their targets' places, and who may serve a request.

A place is a small number: the row of a target in every column. Places of removed workers are used
again. Place 0 is the pool's. Another router may have found the same workers in another order: what
routers are to agree on goes by a target's key, made of its name.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from moonpool.core.errors import BadInput, NoWorker
from moonpool.router.base import Hashes, RouteRequest, Target, Worker
from moonpool.router.index import Places
from moonpool.router.load import Column

BLOCK_SIZE_DEFAULT = 16
_NAMES_MAX = 64  # sets of places whose names are kept


@dataclass(slots=True)
class Member:
    """A worker with what the router learnt of it."""

    worker: Worker
    places: list[int]
    block_size: int
    groups: tuple[int, ...] = (0,)
    """KV groups that make a prefix; a hybrid model may have several."""
    grouped: bool = False
    """True when events told of them."""
    events: int = 0
    """Event batches received."""
    silent_decisions: int = 0
    """Requests sent to it since its last event."""
    busy_until: float = 0.0
    """It answered that it is overloaded; the mark ends by itself."""
    drifted: dict[tuple[int, int], int] = field(default_factory=dict)
    """How many ranges of names, by place and slot, its last own account differed in."""
    evicted_before: int = 0
    """Blocks that the index had no room for, at its last account."""
    problems: dict[str, str] = field(default_factory=dict)
    """What is wrong and what to do, by kind; shown to the operator."""


class Fleet:
    """Members by id, and the eligible places of a request."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self._targets: list[Target | None] = [None]
        self._keys: Hashes = np.zeros(1, np.uint64)
        self._free: list[int] = []
        self._eligible: dict[tuple[str, str], Places] = {}
        self._sizes: Column | None = None
        self._contexts: Column | None = None
        self._capacities: Column | None = None
        self._tainted = False
        self._adapters: frozenset[str] = frozenset()
        self._busy: set[str] = set()
        self._names: dict[bytes, tuple[list[str], list[int]]] = {}
        self.one_group = True
        """False when some worker's prefixes are those of other KV groups than 0."""

    @property
    def places(self) -> int:
        """Places ever used, the pool's included."""
        return len(self._targets)

    def add(self, worker: Worker) -> Member:
        """Raises BadInput when the id is taken; remove it first."""
        if worker.id in self.members:
            raise BadInput(f"worker {worker.id!r} is registered; remove it first")
        places = [self._place(Target(worker.id, rank)) for rank in range(worker.ranks)]
        member = Member(worker, places, worker.block_size)
        self.members[worker.id] = member
        self._changed()
        return member

    def remove(self, worker_id: str) -> Member | None:
        member = self.members.pop(worker_id, None)
        if member is not None:
            for place in member.places:
                self._targets[place] = None
            self._free.extend(reversed(member.places))
            self._changed()
        return member

    def member(self, worker_id: str) -> Member:
        """Raises BadInput: not registered."""
        member = self.members.get(worker_id)
        if member is None:
            raise BadInput(f"worker {worker_id!r} is not registered")
        return member

    def place_of(self, target: Target) -> int | None:
        member = self.members.get(target.worker)
        return None if member is None else member.places[target.rank]

    def names(self, places: Places) -> tuple[list[str], list[int]]:
        """Worker and rank of each place."""
        key = places.tobytes()
        found = self._names.get(key)
        if found is None:
            targets = [self.target(place) for place in places.tolist()]
            found = [t.worker for t in targets], [t.rank for t in targets]
            if len(self._names) < _NAMES_MAX:
                self._names[key] = found
        return found

    def keys(self, places: Places) -> Hashes:
        """A number of each target, the same in every router."""
        return self._keys[places]

    @property
    def any_marked_busy(self) -> bool:
        """False when nobody said so lately."""
        return bool(self._busy)

    def marked_busy(self, places: Places, now: float) -> npt.NDArray[np.bool_]:
        """Which of them said that they take no more."""
        busy = np.zeros(self.places, np.bool_)
        for worker_id in list(self._busy):
            member = self.members.get(worker_id)
            if member is None or member.busy_until <= now:
                self._busy.discard(worker_id)
            else:
                busy[member.places] = True
        return busy[places]

    def mark_busy(self, worker_id: str, until: float) -> None:
        """It takes no more; ends by itself. Raises BadInput: not registered."""
        self.member(worker_id).busy_until = until
        self._busy.add(worker_id)

    def role(self, worker_id: str) -> str:
        return self.members[worker_id].worker.role

    def target(self, place: int) -> Target:
        target = self._targets[place]
        assert target is not None, f"place {place} is nobody's"
        return target

    def member_at(self, place: int) -> Member:
        return self.members[self.target(place).worker]

    def block_sizes(self, places: Places) -> Column:
        """Tokens a block, one place each."""
        if self._sizes is None:
            self._sizes = np.zeros(self.places)
            for member in self.members.values():
                self._sizes[member.places] = self.block_size(member)
        return self._sizes[places]

    def learn_block_size(self, member: Member, size: int) -> None:
        """Its first event told."""
        member.block_size = size
        self._sizes = None

    def groups(self, place: int) -> tuple[int, ...]:
        """KV groups whose blocks make its prefixes."""
        return self.member_at(place).groups

    def learn_groups(self, member: Member, bits: int) -> None:
        """Groups that it stored blocks of."""
        known = set(member.groups) if member.grouped else set()
        member.groups = tuple(sorted(known | {g for g in range(64) if bits >> g & 1}))
        member.grouped = True
        self.one_group = all(m.groups == (0,) for m in self.members.values())

    def block_size(self, member: Member) -> int:
        """Its own, or that of another worker of its model, or 16."""
        if member.block_size:
            return member.block_size
        for other in self.members.values():
            if other.block_size and other.worker.model == member.worker.model:
                return other.block_size
        return BLOCK_SIZE_DEFAULT

    def eligible(self, request: RouteRequest, role: str) -> Places:
        """Places that may serve `role` of the request, busy ones included. Raises NoWorker."""
        places = self._serving(request.model, role)
        chosen = request.pin or request.allowed is not None or request.labels or self._tainted
        if chosen or request.adapter in self._adapters:
            kept = [p for p in places.tolist() if self._allows(request, p)]
            places = np.array(kept, np.int64)
        if not len(places):
            raise NoWorker(self._why_none(request, role))
        return places

    def _serving(self, model: str, role: str) -> Places:
        """By model and role only; kept until the fleet changes."""
        key = (model, role)
        places = self._eligible.get(key)
        if places is None:
            found = [
                place
                for member in self.members.values()
                if member.worker.model == model or not member.worker.model or not model
                if _serves(member.worker.role, role)
                for place in member.places
            ]
            places = self._eligible[key] = np.array(sorted(found), np.int64)
        return places

    def _allows(self, request: RouteRequest, place: int) -> bool:
        target = self.target(place)
        worker = self.members[target.worker].worker
        return (
            (request.pin is None or request.pin == target)
            and (request.allowed is None or worker.id in request.allowed)
            and all(worker.labels.get(k) == v for k, v in request.labels.items())
            and worker.taints <= request.tolerates
            and (request.adapter in worker.adapters or request.adapter not in self._adapters)
        )

    def contexts(self, places: Places) -> Column:
        """Longest request each takes; infinite where it is not known."""
        if self._contexts is None:
            self._contexts = np.zeros(self.places)
            for member in self.members.values():
                self._contexts[member.places] = member.worker.context_tokens_max or np.inf
        return self._contexts[places]

    def capacities(self, places: Places) -> Column:
        """Blocks each has room for on its device; 0 where that, or what it holds, is not known."""
        if self._capacities is None:
            self._capacities = np.zeros(self.places)
            for member in self.members.values():
                if member.events:
                    self._capacities[member.places] = member.worker.kv_blocks_max
        return self._capacities[places]

    def first_heard(self) -> None:
        """Somebody's first event came: from now on it is known what that one holds."""
        self._capacities = None

    def _changed(self) -> None:
        self._eligible.clear()
        self._names.clear()
        self._sizes = self._contexts = self._capacities = None
        workers = [member.worker for member in self.members.values()]
        self._tainted = any(worker.taints for worker in workers)
        self._adapters = frozenset().union(*(worker.adapters for worker in workers))
        self.one_group = all(m.groups == (0,) for m in self.members.values())

    def _place(self, target: Target) -> int:
        key = np.array([_key(target)], np.uint64)
        if self._free:
            place = self._free.pop()
            self._targets[place] = target
            self._keys[place] = key[0]
            return place
        self._targets.append(target)
        self._keys = np.concatenate([self._keys, key])
        return len(self._targets) - 1

    def _why_none(self, request: RouteRequest, role: str) -> str:
        if not self.members:
            return "no worker is registered"
        if request.pin is not None and request.pin.worker not in self.members:
            return f"the pinned worker {request.pin.worker!r} is not registered"
        models = sorted({m.worker.model for m in self.members.values()})
        return (
            f"none of {len(self.members)} workers serves model {request.model!r} as {role!r} under"
            f" the request's pin, labels and taints (models here: {', '.join(models)})"
        )


def _key(target: Target) -> int:
    name = f"{target.rank} {target.worker}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def _serves(worker_role: str, role: str) -> bool:
    return worker_role in (role, "both") or (role == "both" and worker_role == "decode")
