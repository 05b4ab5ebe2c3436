"""Chosen rows out of several objects at once: what a read session asks, split by segment.

Objects are units of equal length in tokens, one after another; a row is one token's bytes in one
layer. On the same host rows are copied in place, elsewhere the node packs them into one frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from moonpool import _core
from moonpool.pool.client_state import Replica
from moonpool.pool.ports import (
    U8,
    U32,
    U64,
    AgentCall,
    Buffer,
    GatherCall,
    Outcome,
    Port,
    Status,
    failed,
)
from moonpool.pool.protocol import Context, Protocol, call_all

if TYPE_CHECKING:
    from moonpool._core import SegmentClient, SegmentView


_NOT_PINNED = (-1 - Status.BOUNDS, -1 - Status.BUSY)


class RowsWanted(NamedTuple):
    """Rows of `row_bytes` bytes. Object u of the session holds positions u * unit_tokens up to the
    next object's; its layer 0 begins at `offsets[u]`, its layers are `strides[u]` bytes apart.
    Layer `layers[i]` wants the next `counts[i]` of `positions`."""

    row_bytes: int
    unit_tokens: int
    offsets: U64
    strides: U64
    layers: U32
    counts: U32
    positions: U32


class Places(NamedTuple):
    """Where a session's objects lie: `which[u]` is the place in `ports` of object u's, -1 for
    none. `together`: all are there, in the first one."""

    ports: list[Port]
    which: npt.NDArray[np.int64]
    slots: U32
    generations: U64
    together: bool


class Gathered(NamedTuple):
    """The first bad status, or OK, and which of the ports had a bad one."""

    status: Status
    bad: list[int]


def places_of(replicas: Sequence[Replica | None]) -> Places:
    """One replica of each object."""
    ports: list[Port] = []
    which = []
    for replica in replicas:
        if replica is not None and replica.port not in ports:
            ports.append(replica.port)
        which.append(-1 if replica is None else ports.index(replica.port))
    return Places(
        ports,
        np.array(which, np.int64),
        np.array([0 if r is None else r.slot for r in replicas], np.uint32),
        np.array([0 if r is None else r.generation for r in replicas], np.uint64),
        len(ports) == 1 and not any(r is None for r in replicas),
    )


def gather_rows(
    context: Context,
    places: Places,
    wanted: RowsWanted,
    out: U8,
    timeout_s: float | None = None,
) -> Protocol[Gathered]:
    """Rows into `out`, one after another."""
    used = _core.units_touched(wanted.positions, wanted.unit_tokens, len(places.which))
    if used is None:
        return Gathered(Status.BOUNDS, [])
    if not len(used):
        return Gathered(Status.OK, [])
    first = last = 0
    if not places.together:
        ports = places.which[used]
        first, last = int(ports.min()), int(ports.max())
    if first < 0:
        return Gathered(Status.NOT_FOUND, [])
    if first == last:
        calls: list[tuple[Port, AgentCall]] = [
            (places.ports[first], _call(wanted, used, places, out))
        ]
        return _gathered([first], (yield from call_all(context, calls, timeout_s)))
    return (yield from _gather_apart(context, places, wanted, out, timeout_s))


def _gather_apart(
    context: Context,
    places: Places,
    wanted: RowsWanted,
    out: U8,
    timeout_s: float | None,
) -> Protocol[Gathered]:
    """Each segment sends its own rows; they are put in their places here."""
    units = wanted.positions // np.uint32(wanted.unit_tokens)
    layer_of = np.repeat(np.arange(len(wanted.layers)), wanted.counts)
    port_of = places.which[units]
    calls: list[tuple[Port, AgentCall]] = []
    rooms = []
    numbers = np.unique(port_of).tolist()
    for number in numbers:
        mine = np.flatnonzero(port_of == number)
        counts = np.bincount(layer_of[mine], minlength=len(wanted.layers)).astype(np.uint32)
        part = wanted._replace(counts=counts, positions=wanted.positions[mine])
        room = np.empty(len(mine) * wanted.row_bytes, np.uint8)
        calls.append((places.ports[number], _call(part, np.unique(units[mine]), places, room)))
        rooms.append((mine, room))
    outcomes = yield from call_all(context, calls, timeout_s)
    rows = out.reshape(-1, wanted.row_bytes)
    for mine, room in rooms:
        rows[mine] = room.reshape(-1, wanted.row_bytes)
    return _gathered(numbers, outcomes)


def _call(wanted: RowsWanted, used: U32, places: Places, out: U8) -> GatherCall:
    """For the objects this call's rows lie in, in order: others need not be open."""
    slots, generations = places.slots, places.generations
    offsets, strides = wanted.offsets, wanted.strides
    positions = wanted.positions
    if len(used) < len(places.which):
        # Units are numbered anew, without those that are not needed.
        slots, generations = slots[used], generations[used]
        offsets, strides = offsets[used], strides[used]
        per_unit = np.uint32(wanted.unit_tokens)
        number = np.searchsorted(used, positions // per_unit).astype(np.uint32)
        positions = number * per_unit + positions % per_unit
    return GatherCall(
        slots,
        generations,
        offsets,
        strides,
        wanted.row_bytes,
        wanted.unit_tokens,
        wanted.layers,
        wanted.counts,
        positions,
        out,
    )


def _gathered(numbers: list[int], outcomes: Sequence[Outcome]) -> Gathered:
    bad = [
        (number, int(outcome.status[outcome.status != Status.OK][0]))
        for number, outcome in zip(numbers, outcomes, strict=True)
        if any(outcome.status.tobytes())
    ]
    status = Status(bad[0][1]) if bad else Status.OK
    return Gathered(status, [number for number, _ in bad])


def gather_pinned(segment: SegmentClient, call: GatherCall) -> Outcome:
    """On memory mapped here: each object is pinned for the length of the call. One that lies in
    several extents, or finds all pins taken, is copied whole."""
    pins: list[SegmentView] = []
    memory: list[Buffer] = []
    try:
        for slot, generation in zip(call.slots.tolist(), call.generations.tolist(), strict=True):
            whole: SegmentView | bytes | int = segment.pin(slot, generation, False)
            if whole in _NOT_PINNED:
                whole = segment.read_bytes(slot, generation, False)
            if isinstance(whole, int):
                return failed(len(call.layers), Status(-1 - whole))
            if not isinstance(whole, bytes):
                pins.append(whole)
            memory.append(whole)
        try:
            table = _core.RowTable(
                call.row_bytes,
                call.unit_tokens,
                int(call.layers.max(initial=0)) + 1,
                int(call.positions.max(initial=0)) + 1,
                memory,
                np.arange(len(memory), dtype=np.uint32),
                call.offsets,
                call.strides,
            )
        except IndexError:
            return failed(len(call.layers), Status.BOUNDS)
        status, _ = table.gather(call.layers, call.counts, call.positions, call.buffer)
        del table
        return failed(len(call.layers), Status(status))
    finally:
        for pin in pins:
            pin.release()
