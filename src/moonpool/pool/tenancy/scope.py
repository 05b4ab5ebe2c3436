"""What a session may name: its tenant's keys and rows, and nothing else.

Inside the pool a tenant's keys begin with its scope; requests get it here and answers lose it, so
that no client knows of it. Rows and attempts are numbers that anybody can guess: those of others
become numbers that nobody has.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from moonpool.core.errors import BadInput, Refused
from moonpool.core.tenants import SCOPE_BYTES, SCOPE_MARK
from moonpool.pool import messages as m
from moonpool.pool.catalog.base import COMMITTED
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.columns import i32, pack_keys, u64, unpack_keys
from moonpool.pool.tenancy.visitor import Visitor

NO_ROW: Final = -1


def enter(visitor: Visitor, message: m.Message, catalog: Catalog) -> m.Message:
    """The request as the pool understands it. Raises BadInput and Refused."""
    match message:
        case m.Reserve():
            return msgspec.structs.replace(
                message,
                keys=_keys(visitor, message.keys),
                outside_parents=_keys(visitor, message.outside_parents),
                tenant=visitor.tenant,
                touches=_touches(visitor, message.touches, catalog),
            )
        case m.Lookup() | m.Exists():
            return msgspec.structs.replace(
                message,
                keys=_keys(visitor, message.keys),
                touches=_touches(visitor, message.touches, catalog),
            )
        case m.Await() | m.Remove():
            return msgspec.structs.replace(message, keys=_keys(visitor, message.keys))
        case m.RemovePrefix() | m.RemoveWhere() | m.List():
            return msgspec.structs.replace(message, prefix=visitor.scope + message.prefix)
        case m.Commit():
            return msgspec.structs.replace(
                message,
                row=_open_rows(visitor, message.row, message.attempt, catalog),
                touches=_touches(visitor, message.touches, catalog),
            )
        case m.Abort() | m.Reoffer():
            rows = _open_rows(visitor, message.row, message.attempt, catalog)
            return msgspec.structs.replace(message, row=rows)
        case m.Lease() | m.Report():
            return msgspec.structs.replace(message, row=_rows(visitor, message.row, catalog))
        case m.Touch():
            touches = _touches(visitor, message.touches, catalog)
            return msgspec.structs.replace(message, touches=touches)
        case m.Drain() if not visitor.operator:
            raise Refused("only the operator drains nodes; this token is a tenant's")
        case m.BeginTask() | m.AskTask() | m.ListTasks() if not visitor.operator:
            raise Refused("only the operator has copies made; this token is a tenant's")
        case m.BeginTask():
            return msgspec.structs.replace(message, keys=_keys(visitor, message.keys))
    return message


def listed(visitor: Visitor, keys: list[bytes]) -> m.KeyColumn:
    return pack_keys([visitor.own(key) for key in keys])


def told(visitor: Visitor, events: list[m.Event]) -> list[m.Event]:
    """What a follower hears: of its own objects, and of nodes."""
    if not visitor.apart or visitor.operator:
        return events
    size, scope = len(visitor.scope), visitor.scope
    return [
        msgspec.structs.replace(one, key=one.key[size:], parent=one.parent[size:])
        for one in events
        if not one.key or one.key.startswith(scope)
    ]


def reachable(visitor: Visitor, endpoints: list[m.SegmentEndpoint]) -> list[m.SegmentEndpoint]:
    """Segments as this visitor may know them: of other tenants none; of those that serve several
    no file and no local socket, as whoever maps one reads all that is in it (P8)."""
    if visitor.operator:
        return endpoints
    mine = visitor.name.encode()
    return [
        one
        if one.trust_domain == mine
        else msgspec.structs.replace(one, path="", unix="", labels={})
        for one in endpoints
        if one.trust_domain in (b"", mine)
    ]


def _keys(visitor: Visitor, column: m.KeyColumn) -> m.KeyColumn:
    keys = unpack_keys(column)
    if visitor.scope:
        return pack_keys([visitor.scope + key for key in keys])
    if any(key[:1] == SCOPE_MARK for key in keys):
        raise BadInput("where there are tenants no key begins with a zero byte")
    return column


def _rows(visitor: Visitor, column: bytes, catalog: Catalog) -> bytes:
    """Rows of other tenants become no row."""
    if visitor.operator:
        return column
    rows, table = i32(column), catalog.table
    known = (rows >= 0) & (rows < table.rows_max)
    mine = known & (table.tenant[np.where(known, rows, 0)] == visitor.tenant)
    return np.where(mine, rows, NO_ROW).astype(np.int32).tobytes()


def _touches(visitor: Visitor, touches: m.Touches, catalog: Catalog) -> m.Touches:
    if not touches.row or visitor.operator:
        return touches
    return m.Touches(_rows(visitor, touches.row, catalog), touches.sequence)


def _open_rows(visitor: Visitor, column: bytes, attempts: bytes, catalog: Catalog) -> bytes:
    """Rows of attempts that were granted to this tenant, or committed by it before."""
    if visitor.operator:
        return column
    rows, table = i32(column), catalog.table
    numbers = u64(attempts)
    if rows.size != numbers.size:
        raise BadInput(f"{rows.size} rows and {numbers.size} attempts")
    mine = []
    for row, attempt in zip(rows.tolist(), numbers.tolist(), strict=True):
        batch = catalog.reservations.find(attempt)
        if batch is not None:
            mine.append(batch.tenant == visitor.tenant)
        else:
            known = 0 <= row < table.rows_max and table.state[row] == COMMITTED
            mine.append(bool(known and table.tenant[row] == visitor.tenant))
    return np.where(mine, rows, NO_ROW).astype(np.int32).tobytes()


def fits(key: bytes, tenant: int) -> bool:
    """Whether a reported key is one of that tenant."""
    if key[:1] != SCOPE_MARK:
        return tenant == 0
    return len(key) > SCOPE_BYTES and int.from_bytes(key[1:SCOPE_BYTES], "little") == tenant
