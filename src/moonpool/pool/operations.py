"""The calls of the public face as protocols; every shell runs these same ones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
import numpy as np

from moonpool.core import errors
from moonpool.pool import messages as m
from moonpool.pool.client_state import Placement
from moonpool.pool.columns import pack_keys, u8, u64, unpack_keys
from moonpool.pool.pins import PinBudget
from moonpool.pool.ports import Buffer, Status
from moonpool.pool.protocol import Context, MasterLost, Protocol, ask
from moonpool.pool.protocol_get import fetch, lookup, touch
from moonpool.pool.results import Hit, Miss, ObjectInfo, PrefixMatch, RemovedWhere, RemoveStatus
from moonpool.pool.view import View, pinned_view

_REMOVED = {
    m.RemoveStatus.REMOVED: RemoveStatus.REMOVED,
    m.RemoveStatus.ABSENT: RemoveStatus.ABSENT,
    m.RemoveStatus.PENDING: RemoveStatus.PENDING,
    m.RemoveStatus.RECOVERING: RemoveStatus.PENDING,
}


class EventBatch(NamedTuple):
    """`rebase`: the position asked for is gone; list the pool, then follow from `position`."""

    events: list[m.Event]
    position: tuple[int, int]
    rebase: bool


def answered(reply: m.Reply | MasterLost, kind: type[m.Reply]) -> None:
    """Raise what the answer says when it is not of the kind that was asked for."""
    if isinstance(reply, kind):
        return
    if isinstance(reply, MasterLost):
        if reply.refused:
            raise errors.error_from_code(reply.code, reply.text)
        raise errors.Unreachable(reply.text)
    if isinstance(reply, m.Failure):
        raise errors.error_from_code(reply.code, reply.text)
    raise errors.BadFrame(f"the master answered {type(reply).__name__}, not {kind.__name__}")


def get_many(
    context: Context, keys: Sequence[bytes], buffers: Sequence[Buffer] | None, verify: bool
) -> Protocol[list[Hit | Miss]]:
    return (yield from fetch(context, keys, buffers, verify=verify))


def exists(context: Context, keys: m.KeyColumn) -> Protocol[list[bool]]:
    """Never extends a life: recency comes from reads."""
    message = m.Exists(keys, context.state.touches.take())
    reply = yield from ask(context, message)
    answered(reply, m.Existence)
    assert isinstance(reply, m.Existence)
    found: list[bool] = np.frombuffer(reply.found, np.bool_).tolist()
    return found


def match_prefix(context: Context, keys: Sequence[bytes]) -> Protocol[PrefixMatch]:
    """The leading run of committed keys; remembers their placements for the reads that follow."""
    answers = yield from lookup(context, keys, prefix=True)
    run: list[Placement] = []
    for answer in answers:
        if isinstance(answer, Miss):
            break
        run.append(answer)
    ports = [placement.replicas[0].port for placement in run]
    return PrefixMatch(
        len(run),
        sum([placement.size for placement in run]),
        [port.node for port in ports],
        sum([port.local for port in ports]),
    )


def place(context: Context, key: bytes, fresh: bool) -> Protocol[Placement | Miss]:
    """The key's placement, cached unless `fresh`."""
    cached = context.state.cache.get(key)
    if cached is not None and not fresh:
        return cached
    return (yield from lookup(context, [key]))[0]


def local_views(
    context: Context, keys: Sequence[bytes], pins: PinBudget
) -> Protocol[list[View | None]]:
    """Views of those that lie here in one piece and can be pinned, after one look-up at most."""
    state = context.state
    places: list[Placement | Miss | None] = [state.cache.get(key) for key in keys]
    unknown = [i for i, place in enumerate(places) if place is None]
    if unknown:
        found = yield from lookup(context, [keys[i] for i in unknown])
        for i, answer in zip(unknown, found, strict=True):
            places[i] = answer
    views: list[View | None] = []
    for key, placed in zip(keys, places, strict=True):
        view: View | int = -1 - Status.NOT_FOUND
        if isinstance(placed, Placement) and placed.replicas[0].port.local:
            with suppress(errors.PoolFull):
                view = pinned_view(placed, pins, False)
            if view == -1 - Status.MOVED:
                state.forget(key, placed)
        views.append(view if isinstance(view, View) else None)
    touch(context, [key for key, view in zip(keys, views, strict=True) if view is not None])
    return views


def touch_one(context: Context, key: bytes) -> None:
    touch(context, [key])


def remove(context: Context, keys: Sequence[bytes], wait_s: float) -> Protocol[list[RemoveStatus]]:
    wait_ms = int(max(0.0, min(wait_s, context.left() * 0.9)) * 1000)
    for key in keys:
        context.state.forget(key)
    reply = yield from ask(context, m.Remove(pack_keys(keys), wait_ms))
    answered(reply, m.Removed)
    assert isinstance(reply, m.Removed)
    return [_REMOVED[m.RemoveStatus(status)] for status in reply.status]


def remove_prefix(context: Context, prefix: bytes, wait_s: float) -> Protocol[int]:
    wait_ms = int(max(0.0, min(wait_s, context.left() * 0.9)) * 1000)
    context.state.cache.clear()
    reply = yield from ask(context, m.RemovePrefix(prefix, wait_ms))
    answered(reply, m.Done)
    assert isinstance(reply, m.Done)
    return reply.count


def remove_where(context: Context, where: m.RemoveWhere, wait_s: float) -> Protocol[RemovedWhere]:
    """In steps, so that the master serves others in between."""
    context.state.cache.clear()
    count = size = cursor = 0
    while cursor >= 0:
        wait_ms = int(max(0.0, min(wait_s, context.left() * 0.9)) * 1000)
        step = msgspec.structs.replace(where, cursor=cursor, wait_ms=wait_ms)
        reply = yield from ask(context, step)
        answered(reply, m.RemovedWhere)
        assert isinstance(reply, m.RemovedWhere)
        count, size, cursor = count + reply.count, size + reply.size, reply.cursor
    return RemovedWhere(count, size)


def list_objects(
    context: Context, prefix: bytes, cursor: int, limit: int
) -> Protocol[tuple[list[ObjectInfo], int]]:
    reply = yield from ask(context, m.List(prefix, cursor, limit))
    answered(reply, m.Listed)
    assert isinstance(reply, m.Listed)
    columns = zip(
        unpack_keys(reply.keys), u64(reply.size).tolist(), u8(reply.replicas).tolist(), strict=True
    )
    return [ObjectInfo(*column) for column in columns], reply.cursor


def drain(context: Context, node: str, stop: bool) -> Protocol[int]:
    """How many copies are still on the node."""
    reply = yield from ask(context, m.Drain(node, stop))
    answered(reply, m.Done)
    assert isinstance(reply, m.Done)
    return reply.count


def stat(context: Context) -> Protocol[dict[str, object]]:
    reply = yield from ask(context, m.Stat())
    answered(reply, m.Status)
    assert isinstance(reply, m.Status)
    return reply.values


def events(
    context: Context, position: tuple[int, int], limit: int, wait_s: float
) -> Protocol[EventBatch]:
    wait_ms = int(max(0.0, min(wait_s, context.left() * 0.9)) * 1000)
    reply = yield from ask(context, m.EventsFrom(position[0], position[1], limit, wait_ms))
    answered(reply, m.Events)
    assert isinstance(reply, m.Events)
    return EventBatch(reply.events, (reply.term, reply.next_sequence), reply.rebase)


def flush(context: Context) -> Protocol[None]:
    """Report the reads logged so far, and what they took."""
    state = context.state
    touches, times = state.touches.take(), state.read_times(context.now())
    if touches.row or times:
        reply = yield from ask(context, m.Touch(touches, times))
        if isinstance(reply, MasterLost) and not reply.refused:
            state.untold.give_back(times)


def lease(
    context: Context, number: int, placements: Sequence[Placement], ttl_s: float
) -> Protocol[tuple[int, list[bool]]]:
    """Take (`number` 0), renew, or with ttl 0 release a lease on these objects."""
    reply = yield from ask(
        context,
        m.Lease(
            number,
            np.array([p.row for p in placements], np.int32).tobytes(),
            np.array([p.sequence for p in placements], np.uint64).tobytes(),
            int(ttl_s * 1000),
        ),
    )
    answered(reply, m.Leased)
    assert isinstance(reply, m.Leased)
    granted: list[bool] = u8(reply.granted).astype(bool).tolist()
    return reply.lease, granted
