"""Reserving: which keys of a batch this client may write, and where. Claims follow from it.

GRANTED items become attempts; IN_FLIGHT and WAIT_PARENT ones wait for others; FULL and the like may
be granted later; EXISTS and the like are settled.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np

from moonpool._core import PutBatch
from moonpool._core import claim_records as plain_records
from moonpool.pool import messages as m
from moonpool.pool.columns import NO_SEGMENT, i32, pack_keys, u8, u16, u64
from moonpool.pool.ports import CLAIM_DTYPE, U64, Buffer
from moonpool.pool.protocol import Context, MasterLost, Protocol, ask, learn_topology
from moonpool.pool.puts import NO_PARENT, PutItem, Puts
from moonpool.pool.results import PutResult, PutStatus

_NO_PARENTS = NO_PARENT.to_bytes(4, "little", signed=True)
_NO_KEYS = m.KeyColumn()


class PutOptions(msgspec.Struct, frozen=True):
    replicas: int = 1
    min_replicas: int = 0  # 0: all of them
    pin: int = 0
    pin_ttl_ms: int = 0
    pin_refresh: bool = False
    group: bytes = b""
    expiry_ms: int = 0
    tenant: int = 0
    chain: bool = False
    replace: bool = False
    prefer_segment: int = -1
    parents: bool = True  # False: no item has one


@dataclass(slots=True)
class Attempt:
    """A granted reservation and the replicas sealed under it so far."""

    item: int
    row: int
    attempt: int
    segments: list[int]
    sealed: list[tuple[int, int, int]]  # segment, slot, generation
    crc: int = 0
    why: str = ""


_SETTLED = {
    m.PutStatus.EXISTS: PutStatus.EXISTS,
    m.PutStatus.PARENT_MISSING: PutStatus.PARENT_MISSING,
    m.PutStatus.TOO_BIG: PutStatus.TOO_LARGE,
    m.PutStatus.QUOTA: PutStatus.QUOTA,
    m.PutStatus.INVALID: PutStatus.INVALID,
}
_AGAIN = {
    m.PutStatus.FULL: PutStatus.FULL,
    m.PutStatus.HELD: PutStatus.FULL,
    m.PutStatus.THROTTLED: PutStatus.THROTTLED,
    m.PutStatus.RECOVERING: PutStatus.RECOVERING,
    m.PutStatus.NO_NODE: PutStatus.UNREACHABLE,
}


@dataclass(slots=True)
class Round:
    """What one reservation granted, what others are writing, and what may be granted later."""

    attempts: list[Attempt]
    waiting: list[int]
    later: dict[int, PutStatus]
    held: bool = False  # of those that are full, one said that nothing may go


def any_parent(items: Sequence[PutItem]) -> bool:
    return any(item.parent != NO_PARENT or item.outside_parent is not None for item in items)


def _parents(items: list[PutItem], todo: list[int]) -> tuple[bytes, m.KeyColumn]:
    """`parent_of` and `outside_parents` of a reserve call."""
    position = {item: at for at, item in enumerate(todo)}
    parents: list[int] = []
    outside: list[bytes] = []
    for i in todo:
        item = items[i]
        key = item.outside_parent
        if item.parent != NO_PARENT:
            if item.parent in position:
                parents.append(position[item.parent])
                continue
            key = items[item.parent].key
        if key is None:
            parents.append(NO_PARENT)
        else:
            parents.append(-2 - len(outside))
            outside.append(key)
    return np.array(parents, np.int32).tobytes(), pack_keys(outside)


class Layout(NamedTuple):
    """A batch of one copy each, ready to be sent once its numbers are known."""

    batch: PutBatch
    sources: list[Buffer]
    nbytes: int


def lay_out(puts: Puts, todo: list[int], options: PutOptions) -> Layout:
    """Raises ValueError when a source has changed its size, BufferError when it is gone."""
    columns, parents = puts.columns(todo), None
    if options.parents:
        items = puts.items
        chosen = [items[i] for i in todo]
        if any_parent(chosen):
            parents = _parent_keys(items, chosen)
    batch = PutBatch(
        *columns,
        parents,
        options.replicas,
        options.expiry_ms,
        options.tenant,
        options.pin,
    )
    return Layout(batch, columns.sources, sum(columns.sizes))


def _parent_keys(items: list[PutItem], chosen: Sequence[PutItem]) -> list[bytes]:
    """The parent of each, empty where there is none."""
    return [
        item.outside_parent or b"" if item.parent == NO_PARENT else items[item.parent].key
        for item in chosen
    ]


def _reserve_message(
    context: Context, puts: Puts, todo: list[int], options: PutOptions
) -> m.Reserve:
    columns = puts.columns(todo)
    if options.parents and any_parent([puts.items[i] for i in todo]):
        parents, outside = _parents(puts.items, todo)
    else:
        parents, outside = _NO_PARENTS * len(todo), _NO_KEYS
    return m.Reserve(
        pack_keys(columns.keys),
        columns.sizes.tobytes(),
        parents,
        outside,
        options.replicas,
        options.min_replicas,
        options.pin,
        options.expiry_ms,
        options.tenant,
        options.chain,
        options.replace,
        options.prefer_segment,
        context.state.touches.take(),
        options.pin_ttl_ms,
        options.pin_refresh,
        options.group,
    )


def reserve(
    context: Context, items: list[PutItem], todo: list[int], options: PutOptions
) -> Protocol[Round | MasterLost]:
    """One reservation round."""
    reply = yield from reservation(context, Puts.of(items), todo, options)
    return reply if isinstance(reply, MasterLost) else grants(items, todo, reply)


def reservation(
    context: Context,
    puts: Puts,
    todo: list[int],
    options: PutOptions,
    meanwhile: Callable[[], None] | None = None,
) -> Protocol[m.Reserved | MasterLost]:
    reply = yield from ask(context, _reserve_message(context, puts, todo, options), meanwhile)
    if isinstance(reply, MasterLost):
        return reply
    if not isinstance(reply, m.Reserved):
        return MasterLost(f"unexpected answer {reply!r}", refused=True)
    context.reserved = reply
    known = reply.topology_version == context.state.topology_version
    if not known and not (yield from learn_topology(context, reply.topology_version)):
        return MasterLost("the master went away")
    context.state.term = reply.term
    return reply


def abort_granted(reply: m.Reserved) -> m.Abort:
    """Give back all that a reservation granted."""
    granted = u8(reply.status) == m.PutStatus.GRANTED
    return m.Abort(i32(reply.row)[granted].tobytes(), u64(reply.attempt)[granted].tobytes())


def grants(items: list[PutItem], todo: list[int], reply: m.Reserved) -> Round:
    """Item by item; what is settled already gets its result."""
    rows, numbers = i32(reply.row).tolist(), u64(reply.attempt).tolist()
    segments = u16(reply.segments).reshape(len(todo), -1).tolist()
    granted = Round([], [], {})
    for at, (i, byte) in enumerate(zip(todo, reply.status, strict=True)):
        status = m.PutStatus(byte)
        if status == m.PutStatus.GRANTED:
            chosen = [segment for segment in segments[at] if segment != NO_SEGMENT]
            granted.attempts.append(Attempt(i, rows[at], numbers[at], chosen, []))
        elif status in (m.PutStatus.IN_FLIGHT, m.PutStatus.WAIT_PARENT):
            granted.waiting.append(i)
        elif status in _AGAIN:
            granted.later[i] = _AGAIN[status]
            granted.held |= status == m.PutStatus.HELD
        else:
            items[i].result = PutResult(_SETTLED.get(status, PutStatus.INVALID))
    return granted


def claim_records(
    items: list[PutItem], attempts: list[Attempt], options: PutOptions, term: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.void]], bytes]:
    """The claim of each attempt: CLAIM_DTYPE records, and keys with parents back to back."""
    sequences = np.array([attempt.attempt for attempt in attempts], np.uint64)
    return records_of(items, [attempt.item for attempt in attempts], sequences, options, term)


def records_of(
    items: list[PutItem], which: Sequence[int], sequences: U64, options: PutOptions, term: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.void]], bytes]:
    chosen = [items[i] for i in which]
    keys = [item.key for item in chosen]
    if not (options.parents and any_parent(chosen)):
        columns, blob = plain_records(
            keys,
            array("Q", [item.size for item in chosen]),
            sequences,
            term=term,
            replicas=options.replicas,
            expiry_ms=options.expiry_ms,
            tenant=options.tenant,
            pin=options.pin,
        )
        return np.frombuffer(columns, CLAIM_DTYPE), blob
    records = np.zeros(len(which), CLAIM_DTYPE)
    records["size"] = [item.size for item in chosen]
    records["term"] = term
    records["sequence"] = sequences
    records["key_len"] = list(map(len, keys))
    records["replicas"] = options.replicas
    if options.expiry_ms:
        records["expiry_ms"] = options.expiry_ms
    if options.tenant:
        records["tenant"] = options.tenant
    if options.pin:
        records["pin"] = options.pin
    parents = _parent_keys(items, chosen)
    records["parent_len"] = list(map(len, parents))
    return records, b"".join(chain.from_iterable(zip(keys, parents, strict=True)))
