"""A node fetches copies from another: bytes by the way clients go, claim and seal in its own agent.

The version, the key and the CRC are the master's; what does not have that CRC is not sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from moonpool._core import crc32c
from moonpool.pool import messages as m
from moonpool.pool.columns import u8, u32, u64, unpack_keys
from moonpool.pool.ports import CLAIM_DTYPE, Port, ReadCall, Status

if TYPE_CHECKING:
    from moonpool._core import SegmentAgent

READ_S = 5.0


def fetch(
    order: m.Copy, open_port: Callable[[m.SegmentEndpoint], Port]
) -> list[np.ndarray[tuple[int], np.dtype[np.uint8]] | None]:
    """The objects' bytes, None where one could not be had. Blocks: for a thread of its own."""
    slots, generations, sizes = u32(order.slot), u64(order.generation), u64(order.size)
    buffers = [np.empty(size, np.uint8) for size in sizes.tolist()]
    try:
        port = open_port(order.source)
    except OSError:
        return [None] * len(buffers)
    try:
        outcome = port.start(ReadCall(slots, generations, buffers, True), READ_S)()
    finally:
        port.close()
    return [
        buffer if status == Status.OK else None
        for buffer, status in zip(buffers, outcome.status.tolist(), strict=True)
    ]


def keep(
    agent: SegmentAgent, order: m.Copy, data: Sequence[object | None], now_ns: int = -1
) -> m.Copied:
    """Claim, write and seal what was fetched."""
    n = len(data)
    status = np.full(n, Status.UNREACHABLE, np.uint8)
    slots, generations = np.zeros(n, np.uint32), np.zeros(n, np.uint64)
    crcs = u32(order.crc)
    have = [i for i, one in enumerate(data) if one is not None and crc32c(one) == int(crcs[i])]  # type: ignore[arg-type]
    if have and order.term == agent.term:
        at = np.array(have)
        records, blob = _records(order, have)
        status[at], slots[at], generations[at] = agent.claim(
            records, blob, order.term, -1, 0, now_ns
        )
        for i in have:
            if status[i] == Status.OK:
                status[i] = agent.write(int(slots[i]), int(generations[i]), 0, data[i])  # type: ignore[arg-type]
        good = np.flatnonzero(status == Status.OK)
        if good.size:
            status[good] = agent.seal(slots[good], generations[good], crcs[good], 0, order.term)
        bad = np.flatnonzero((status != Status.OK) & (generations != 0))
        if bad.size:
            agent.abort(slots[bad], generations[bad])
    return m.Copied(
        order.id, order.segment, status.tobytes(), slots.tobytes(), generations.tobytes()
    )


def _records(
    order: m.Copy, which: list[int]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.void]], bytes]:
    keys, parents = unpack_keys(order.keys), unpack_keys(order.parents)
    records = np.zeros(len(which), CLAIM_DTYPE)
    columns = (
        ("size", u64(order.size)),
        ("term", u64(order.version_term)),
        ("sequence", u64(order.version_sequence)),
        ("expiry_ms", np.frombuffer(order.expiry_ms, np.int64)),
        ("tenant", u32(order.tenant)),
        ("replicas", u8(order.replicas)),
        ("pin", u8(order.pin)),
    )
    for name, column in columns:
        records[name] = column[which]
    records["key_len"] = [len(keys[i]) for i in which]
    records["parent_len"] = [len(parents[i]) for i in which]
    return records, b"".join(keys[i] + parents[i] for i in which)
