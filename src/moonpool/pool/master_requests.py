"""What a client asks of the master: who and when, and its columns checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from moonpool.core.errors import BadInput, Refused
from moonpool.pool import messages as m
from moonpool.pool.catalog.base import PIN_HARD, PIN_KIND, PIN_MAX, U32
from moonpool.pool.catalog.commits import CommitRequest
from moonpool.pool.catalog.reservations import PutRequest
from moonpool.pool.columns import check_ends, i32, u8, u16, u32, u64, unpack_keys
from moonpool.pool.keep import GROUP_BYTES_MAX
from moonpool.pool.master_limits import BATCH_MAX
from moonpool.pool.tenancy.visitor import OPERATOR, Visitor

_NO_ENDS = np.zeros(0, np.uint32)


@dataclass(slots=True)
class Session:
    """Who is connected."""

    role: Literal["client", "node"]
    name: str
    host_id: str
    visitor: Visitor


class Asked(NamedTuple):
    """Who asks, and when; `request` is the number that the answer carries."""

    session: int
    request: int
    host_id: str
    now: float
    wall_ms: int
    visitor: Visitor = OPERATOR


def batch_ends(keys: m.KeyColumn) -> U32:
    ends = u32(keys.ends)
    if ends.size > BATCH_MAX:
        raise BadInput(f"a batch of {ends.size} keys; at most {BATCH_MAX} are taken")
    return ends


def batch_keys(keys: m.KeyColumn) -> list[bytes]:
    batch_ends(keys)
    return unpack_keys(keys)


def put_request(call: m.Reserve, asked: Asked) -> PutRequest:
    """Checked columns of a reserve call. Raises BadInput. The table looks at the keys' ends."""
    ends, sizes, parent_of = batch_ends(call.keys), u64(call.sizes), i32(call.parent_of)
    if not ends.size == sizes.size == parent_of.size:
        raise BadInput(f"{ends.size} keys, {sizes.size} sizes, {parent_of.size} parents")
    outside = _NO_ENDS
    if call.outside_parents.ends or call.outside_parents.blob:
        outside = u32(call.outside_parents.ends)
        check_ends(call.outside_parents.blob, outside)
    replicas = call.replicas
    least = call.min_replicas or replicas
    if not 1 <= least <= replicas <= m.REPLICAS_MAX:
        raise BadInput(f"{replicas} replicas, at least {least}; 1 to {m.REPLICAS_MAX} are possible")
    sound = 0 <= call.tenant < 2**32 and 0 <= call.expiry_ms < 2**62
    if not sound or ((call.pin or call.pin_ttl_ms) and not _pin_fits(call)):
        raise BadInput(f"pin {call.pin}, tenant {call.tenant}, expiry {call.expiry_ms}")
    if len(call.group) > GROUP_BYTES_MAX:
        raise BadInput(
            f"a group's name of {len(call.group)} bytes; it has at most {GROUP_BYTES_MAX}"
        )
    return PutRequest(
        owner=asked.session,
        blob=call.keys.blob,
        ends=ends,
        sizes=sizes,
        parent_of=parent_of,
        outside_blob=call.outside_parents.blob,
        outside_ends=outside,
        replicas=replicas,
        min_replicas=least,
        pin=call.pin,
        pin_ttl_ms=call.pin_ttl_ms,
        pin_refresh=call.pin_refresh,
        group=call.group,
        expiry_ms=call.expiry_ms,
        tenant=call.tenant,
        chain=call.chain,
        replace=call.replace,
        prefer_segment=call.prefer_segment,
        host_id=asked.host_id,
    )


def _pin_fits(call: m.Reserve) -> bool:
    return (
        0 <= call.pin <= PIN_MAX
        and call.pin & PIN_KIND <= PIN_HARD
        and 0 <= call.pin_ttl_ms < 2**53
    )


def commit_request(call: m.Commit) -> CommitRequest:
    """Checked columns of a commit call. Raises BadInput."""
    rows, attempts, crcs = i32(call.row), u64(call.attempt), u32(call.crc)
    counts, segments = u8(call.replicas.counts), u16(call.replicas.segment)
    slots, generations = u32(call.replicas.slot), u64(call.replicas.generation)
    if not rows.size == attempts.size == crcs.size == counts.size:
        raise BadInput(f"{rows.size} rows, {attempts.size} attempts, {counts.size} counts")
    single = call.replicas.counts == b"\x01" * counts.size
    flat = counts.size if single else int(counts.sum())
    if not 0 <= call.term < 2**62:
        raise BadInput(f"commit under term {call.term}")
    if not flat == segments.size == slots.size == generations.size or rows.size > BATCH_MAX:
        raise BadInput(f"{flat} replicas counted, {segments.size} given for {rows.size} rows")
    return CommitRequest(call.term, rows, attempts, crcs, counts, segments, slots, generations)


def failure_of(error: ValueError | IndexError | Refused) -> m.Failure:
    code = error.code if isinstance(error, BadInput | Refused) else "bad_input"
    return m.Failure(code, str(error))
