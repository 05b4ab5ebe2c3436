"""Write sessions as protocols: claim now, write in pieces, seal and commit at the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moonpool.pool.client_state import Placement
from moonpool.pool.ports import (
    AbortCall,
    AgentCall,
    Buffer,
    ClaimCall,
    Port,
    SealCall,
    Status,
    WriteRangeCall,
)
from moonpool.pool.protocol import Context, MasterLost, Protocol, call_all
from moonpool.pool.protocol_get import lookup
from moonpool.pool.protocol_put import abort, commit, patience_s
from moonpool.pool.protocol_reserve import Attempt, PutOptions, claim_records, reserve
from moonpool.pool.put_reasons import ran_out
from moonpool.pool.puts import PutItem
from moonpool.pool.results import Miss, PutResult, PutStatus

Claims = dict[int, list[tuple[Attempt, int, int]]]  # segment -> (attempt, slot, generation)


def open_write(
    context: Context, items: list[PutItem], options: PutOptions
) -> Protocol[tuple[list[Attempt], Claims]]:
    """Reserve and claim. Items that cannot be written now get their result at once."""
    granted = yield from reserve(context, items, list(range(len(items))), options)
    if isinstance(granted, MasterLost):
        for item in items:
            item.result = PutResult(PutStatus.UNREACHABLE, 0, granted.text)
        return [], {}
    for i in granted.waiting:
        items[i].result = PutResult(PutStatus.IN_FLIGHT)
    for i, status in granted.later.items():
        items[i].result = ran_out(context.state, options, status)
    claims: Claims = {}
    calls: list[tuple[Port, AgentCall]] = []
    order: list[tuple[int, list[Attempt]]] = []
    by_segment: dict[int, list[Attempt]] = {}
    for attempt in granted.attempts:
        for segment in attempt.segments:
            by_segment.setdefault(segment, []).append(attempt)
    for segment, members in by_segment.items():
        port = context.state.port(segment)
        if port is None:
            continue
        records, blob = claim_records(items, members, options, context.state.term)
        calls.append((port, ClaimCall(records, blob, context.state.term)))
        order.append((segment, members))
    outcomes = yield from call_all(context, calls, patience_s(context, options))
    for (segment, members), outcome in zip(order, outcomes, strict=True):
        columns = zip(
            members,
            outcome.status.tolist(),
            outcome.slots.tolist(),
            outcome.generations.tolist(),
            strict=True,
        )
        for attempt, status, slot, generation in columns:
            if status == Status.OK:
                claims.setdefault(segment, []).append((attempt, slot, generation))
            else:
                attempt.why = Status(status).name.lower()
    return granted.attempts, claims


def write_pieces(
    context: Context,
    claims: Claims,
    offsets: Sequence[int],
    sources: Sequence[Buffer | None],
    options: PutOptions,
) -> Protocol[None]:
    """Write `sources[i]` at `offsets[i]` of item i in every replica; None skips the item. A
    replica that fails leaves the claims: it is not sealed."""
    calls: list[tuple[Port, AgentCall]] = []
    order = []
    for segment, members in claims.items():
        port = context.state.port(segment)
        chosen = [c for c in members if sources[c[0].item] is not None]
        if port is None or not chosen:
            continue
        calls.append(
            (
                port,
                WriteRangeCall(
                    np.array([slot for _, slot, _ in chosen], np.uint32),
                    np.array([generation for _, _, generation in chosen], np.uint64),
                    np.array([offsets[a.item] for a, _, _ in chosen], np.uint64),
                    [sources[a.item] for a, _, _ in chosen],
                ),
            )
        )
        order.append((segment, chosen))
    outcomes = yield from call_all(context, calls, patience_s(context, options))
    aborts: list[tuple[Port, AgentCall]] = []
    for (segment, chosen), (port, _), outcome in zip(order, calls, outcomes, strict=True):
        broken = []
        for claim, status in zip(chosen, outcome.status.tolist(), strict=True):
            if status != Status.OK:
                claim[0].why = f"{Status(status).name.lower()} {outcome.text}".strip()
                if claim in claims[segment]:  # pieces written side by side fail together
                    claims[segment].remove(claim)
                    broken.append(claim)
        if broken:
            aborts.append((port, AbortCall(*_columns(broken))))
    yield from call_all(context, aborts, patience_s(context, options))


def close_write(
    context: Context,
    items: list[PutItem],
    attempts: list[Attempt],
    claims: Claims,
    options: PutOptions,
) -> Protocol[list[PutResult]]:
    """Seal every replica that is whole, then commit."""
    calls: list[tuple[Port, AgentCall]] = []
    order = []
    for segment, members in claims.items():
        port = context.state.port(segment)
        if port is not None and members:
            calls.append((port, SealCall(*_columns(members), context.state.term)))
            order.append((segment, members))
    outcomes = yield from call_all(context, calls, patience_s(context, options))
    for (segment, members), outcome in zip(order, outcomes, strict=True):
        for (attempt, slot, generation), status, crc in zip(
            members, outcome.status.tolist(), outcome.crcs.tolist(), strict=True
        ):
            if status == Status.OK:
                attempt.sealed.append((segment, slot, generation))
                attempt.crc = crc
            else:
                attempt.why = f"{Status(status).name.lower()} {outcome.text}".strip()
    lost = yield from commit(context, items, attempts, options)
    for i in lost:
        items[i].result = PutResult(PutStatus.LOST, 0, "the master was replaced meanwhile")
    return [item.result or PutResult(PutStatus.LOST) for item in items]


def abort_write(context: Context, attempts: list[Attempt], claims: Claims) -> Protocol[None]:
    calls: list[tuple[Port, AgentCall]] = []
    for segment, members in claims.items():
        port = context.state.port(segment)
        if port is not None and members:
            calls.append((port, AbortCall(*_columns(members))))
    yield from call_all(context, calls)
    if attempts:
        yield from abort(context, attempts)


def abort_forgotten(context: Context) -> Protocol[None]:
    """Give back what write sessions held that nobody can end any more."""
    while context.state.forgotten:
        attempts, claims = context.state.forgotten.popleft()
        yield from abort_write(context, attempts, claims)


def _columns(
    members: list[tuple[Attempt, int, int]],
) -> tuple[
    np.ndarray[tuple[int], np.dtype[np.uint32]], np.ndarray[tuple[int], np.dtype[np.uint64]]
]:
    return (
        np.array([slot for _, slot, _ in members], np.uint32),
        np.array([generation for _, _, generation in members], np.uint64),
    )


def find(context: Context, keys: Sequence[bytes]) -> Protocol[list[Placement | Miss]]:
    """Placements of all keys, asked anew: a session must not begin on a stale one."""
    return (yield from lookup(context, keys))
