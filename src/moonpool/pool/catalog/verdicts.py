"""Which keys of a reserve call may be written, before room is looked for."""

from __future__ import annotations

import numpy as np

from moonpool.pool.catalog.base import COMMITTED, I32, U8
from moonpool.pool.catalog.reservations import PutRequest
from moonpool.pool.catalog.rows import Rows
from moonpool.pool.messages import PutStatus

_GRANTED = int(PutStatus.GRANTED)
_EXISTS = int(PutStatus.EXISTS)
_IN_FLIGHT = int(PutStatus.IN_FLIGHT)
_PARENT_MISSING = int(PutStatus.PARENT_MISSING)
_FULL = int(PutStatus.FULL)
_HELD = int(PutStatus.HELD)
_TOO_BIG = int(PutStatus.TOO_BIG)
_WAIT_PARENT = int(PutStatus.WAIT_PARENT)
_NO_NODE = int(PutStatus.NO_NODE)
_QUOTA = int(PutStatus.QUOTA)
_INVALID = int(PutStatus.INVALID)

# What a key gets whose parent (or predecessor in a chain) got this.
_AFTER = {
    _IN_FLIGHT: _WAIT_PARENT,
    _WAIT_PARENT: _WAIT_PARENT,
    _FULL: _FULL,
    _HELD: _HELD,
    _TOO_BIG: _FULL,
    _QUOTA: _QUOTA,
    _NO_NODE: _NO_NODE,
    _PARENT_MISSING: _PARENT_MISSING,
    _INVALID: _PARENT_MISSING,
}


def who_may(store: Rows, put: PutRequest, rows: I32, wall_ms: int) -> U8:
    """PutStatus of each key as if it had no kin: GRANTED, EXISTS or IN_FLIGHT."""
    status = np.zeros(rows.size, np.uint8)
    if not put.replace:
        readable = store.table.state[rows] == COMMITTED
        if store.may_expire:
            readable &= ~store.expired(rows, wall_ms)
        if not store.segments.all_alive:
            # A value that nobody can reach may be put again; the old one goes when it returns.
            readable &= store.reachable(rows)
        status[readable] = _EXISTS
    status[(status == _GRANTED) & store.in_flight(rows)] = _IN_FLIGHT
    _, first = np.unique(rows, return_index=True)
    if first.size < rows.size:
        again = np.ones(rows.size, np.bool_)
        again[first] = False
        status[again & (status == _GRANTED)] = _IN_FLIGHT
    return status


def spread(put: PutRequest, status: U8) -> None:
    """A key cannot be written when its parent, or any before it in a chain, cannot."""
    states = status.tolist()
    parent_of = put.parent_of.tolist()
    blocked = _GRANTED
    for i, parent in enumerate(parent_of):
        if states[i] == _GRANTED and put.chain:
            states[i] = blocked
        if states[i] == _GRANTED and parent >= 0:
            states[i] = _AFTER.get(states[parent], _GRANTED)
        if states[i] in _AFTER:
            blocked = _AFTER[states[i]]
    status[:] = states
