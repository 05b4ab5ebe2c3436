"""Writing: reserve, write and seal at the agents, commit. Two phases, nothing visible in between.

reserve -> GRANTED -> PutCall at each replica's segment -> commit -> STORED
        -> EXISTS / FULL / ...                 settled
        -> IN_FLIGHT / WAIT_PARENT             await (bounded), then reserve again
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moonpool.pool import messages as m
from moonpool.pool.columns import NO_SEGMENT, pack_keys, u16, u32, u64
from moonpool.pool.ports import BatchPutCall, Outcome, Port, PutCall, Status
from moonpool.pool.ports import failed as failed_call
from moonpool.pool.protocol import (
    Context,
    MasterLost,
    Pause,
    Protocol,
    ask,
    call_all,
    learn_topology,
)
from moonpool.pool.protocol_reserve import (
    Attempt,
    Layout,
    PutOptions,
    claim_records,
    grants,
    lay_out,
    reservation,
)
from moonpool.pool.put_reasons import copies_needed, ran_out, unsealed
from moonpool.pool.puts import PutItem, Puts
from moonpool.pool.results import PutResult, PutStatus

WRITE_TRIES_MAX = 4  # nodes tried for one replica before the put settles for fewer
FULL_WAIT_S = 1.0  # how long a put waits for room before it says full


_NOWHERE = NO_SEGMENT.to_bytes(2, "little")
_COMMITTED = bytes([m.PutStatus.COMMITTED])
_STORED = PutResult(PutStatus.STORED, 1)


def store(
    context: Context, batch: Puts | list[PutItem], options: PutOptions, *, wait_s: float
) -> Protocol[list[PutResult]]:
    """Put a batch. `wait_s` bounds the wait for keys that others are writing."""
    puts = batch if isinstance(batch, Puts) else Puts.of(batch)
    began = context.now()
    full_until, wait_until = began + FULL_WAIT_S, began + wait_s
    todo = list(range(len(puts)))
    why: dict[int, PutStatus] = {}
    held = False
    unsure: set[int] = set()  # a commit of theirs was not answered: it may have been heard
    while todo and context.left() > 0:
        laid: list[Layout] = []

        def prepare(laid: list[Layout] = laid, todo: list[int] = todo) -> None:
            laid.append(lay_out(puts, todo, options))

        usual = options.replicas == 1
        reserved = yield from reservation(context, puts, todo, options, prepare if usual else None)
        if isinstance(reserved, MasterLost):
            _settle(puts.items, todo, PutStatus.UNREACHABLE, reserved.text)
            break
        if granted_whole(reserved, options):
            why = {}
            ready = laid.pop() if laid else lay_out(puts, todo, options)
            todo = yield from _store_whole(context, puts, todo, reserved, options, ready)
            context.reserved = None
            unsure.update(todo)
            continue
        laid.clear()  # it holds the callers' buffers
        items = puts.items
        granted = grants(items, todo, reserved)
        why, held = granted.later, granted.held
        yield from write(context, items, granted.attempts, options)
        redo = yield from commit(context, items, granted.attempts, options)
        context.reserved = None
        unsure.update(redo)
        if granted.waiting:
            yield from _await(context, items, granted.waiting, wait_until)
        todo = sorted(redo + [i for i in granted.waiting if items[i].result is None] + list(why))
        if why and not redo and not granted.waiting:
            if all(one is PutStatus.THROTTLED for one in why.values()):
                continue  # the master had it wait
            if context.now() >= full_until:
                break
            yield Pause(0.01)
    if not todo and not unsure:
        return puts.results()
    for i, item in enumerate(puts.items):
        if item.result is None:
            item.result = ran_out(context.state, options, why.get(i), held)
        if i in unsure and not item.result.ok:
            text = "a commit was not answered, and the master was lost: it may have been done"
            item.result = PutResult(PutStatus.LOST, 0, text)
    return puts.results()


def _settle(items: list[PutItem], which: Sequence[int], status: PutStatus, text: str) -> None:
    for i in which:
        items[i].result = PutResult(status, 0, text)


def patience_s(context: Context, options: PutOptions) -> float | None:
    """How long an agent may be silent. Where fewer copies suffice, half of the time that is left:
    the rest is for the commit of what is sealed. None: all of it."""
    return context.left() / 2 if copies_needed(options) < options.replicas else None


def first_patience_s(context: Context, options: PutOptions) -> float | None:
    """The same where another node may be offered instead: half of the time is for that one."""
    elsewhere = context.state.nodes_up > options.replicas
    return context.left() / 2 if elsewhere else patience_s(context, options)


def write(
    context: Context, items: list[PutItem], attempts: list[Attempt], options: PutOptions
) -> Protocol[None]:
    """Write every replica of every attempt; a segment that fails is replaced by another offer."""
    for _ in range(WRITE_TRIES_MAX):
        by_segment: dict[int, list[Attempt]] = {}
        for attempt in attempts:
            for segment in attempt.segments:
                by_segment.setdefault(segment, []).append(attempt)
            attempt.segments = []
        failed = yield from _write_once(context, items, by_segment, options)
        if not failed or context.left() <= 0:
            return
        yield from _reoffer(context, failed)


def _write_once(
    context: Context,
    items: list[PutItem],
    by_segment: dict[int, list[Attempt]],
    options: PutOptions,
) -> Protocol[list[tuple[Attempt, int, Status]]]:
    term = context.state.term
    calls: list[tuple[Port, PutCall]] = []
    order: list[tuple[int, list[Attempt]]] = []
    failed: list[tuple[Attempt, int, Status]] = []
    for segment, members in by_segment.items():
        port = context.state.port(segment)
        if port is None:
            failed += [(attempt, segment, Status.UNREACHABLE) for attempt in members]
            continue
        records, blob = claim_records(items, members, options, term)
        chosen = [items[attempt.item] for attempt in members]
        sources = [item.source for item in chosen]
        nbytes = sum([item.size for item in chosen])
        calls.append((port, PutCall(records, blob, term, sources, nbytes)))
        order.append((segment, members))
    outcomes = yield from call_all(context, list(calls), first_patience_s(context, options))
    for (segment, members), outcome in zip(order, outcomes, strict=True):
        failed += _take(segment, members, outcome)
    return failed


def _take(
    segment: int, members: list[Attempt], outcome: Outcome
) -> list[tuple[Attempt, int, Status]]:
    failed = []
    columns = zip(
        members,
        outcome.status.tolist(),
        outcome.slots.tolist(),
        outcome.generations.tolist(),
        outcome.crcs.tolist(),
        strict=True,
    )
    for attempt, status, slot, generation, crc in columns:
        if status == Status.OK:
            attempt.sealed.append((segment, slot, generation))
            attempt.crc = crc
        else:
            attempt.why = f"{Status(status).name.lower()} {outcome.text}".strip()
            failed.append((attempt, segment, Status(status)))
    return failed


def _reoffer(context: Context, failed: list[tuple[Attempt, int, Status]]) -> Protocol[None]:
    """No space is a matter of moments (memory drains): the same segment again. Else another."""
    crowded = [(a, s) for a, s, status in failed if status in (Status.NO_SPACE, Status.NO_SLOT)]
    lost = [(a, s) for a, s, status in failed if status not in (Status.NO_SPACE, Status.NO_SLOT)]
    for attempt, segment in crowded:
        attempt.segments.append(segment)
    if crowded:
        yield Pause(0.005)
    if not lost:
        return
    message = m.Reoffer(
        np.array([a.row for a, _ in lost], np.int32).tobytes(),
        np.array([a.attempt for a, _ in lost], np.uint64).tobytes(),
        np.array([s for _, s in lost], np.uint16).tobytes(),
    )
    reply = yield from ask(context, message)
    if not isinstance(reply, m.Reoffered):
        return
    yield from learn_topology(context, reply.topology_version)
    for (attempt, _), segment in zip(lost, u16(reply.segments).tolist(), strict=True):
        if segment != NO_SEGMENT:
            attempt.segments.append(segment)


def commit(
    context: Context, items: list[PutItem], attempts: list[Attempt], options: PutOptions
) -> Protocol[list[int]]:
    """Make what is sealed visible; what is not is aborted. Returns items to put again."""
    least = copies_needed(options)
    good = [attempt for attempt in attempts if len(attempt.sealed) >= least]
    bad = [attempt for attempt in attempts if len(attempt.sealed) < least]
    if bad:
        yield from abort(context, bad)
        for attempt in bad:
            items[attempt.item].result = unsealed(context.state, options, attempt)
    if not good:
        return []
    reply = yield from ask(context, commit_message(context, good))
    if isinstance(reply, m.Committed):
        return _committed(items, good, reply)
    # The answer is lost: a sealed put may be found committed, so ask for its key again.
    return [attempt.item for attempt in good]


def commit_message(context: Context, attempts: list[Attempt]) -> m.Commit:
    flat = [replica for attempt in attempts for replica in attempt.sealed]
    return m.Commit(
        context.state.term,
        np.array([a.row for a in attempts], np.int32).tobytes(),
        np.array([a.attempt for a in attempts], np.uint64).tobytes(),
        np.array([a.crc for a in attempts], np.uint32).tobytes(),
        m.ReplicaColumn(
            np.array([len(a.sealed) for a in attempts], np.uint8).tobytes(),
            np.array([segment for segment, _, _ in flat], np.uint16).tobytes(),
            np.array([slot for _, slot, _ in flat], np.uint32).tobytes(),
            np.array([generation for _, _, generation in flat], np.uint64).tobytes(),
        ),
    )


def _committed(items: list[PutItem], good: list[Attempt], reply: m.Committed) -> list[int]:
    again = []
    for attempt, status in zip(good, reply.status, strict=True):
        item = items[attempt.item]
        if status == m.PutStatus.COMMITTED:
            item.result = PutResult(PutStatus.STORED, len(attempt.sealed))
        elif status == m.PutStatus.STALE_TERM:
            again.append(attempt.item)
        elif status == m.PutStatus.PARENT_MISSING:
            item.result = PutResult(PutStatus.PARENT_MISSING)
        elif status == m.PutStatus.EXISTS:
            item.result = PutResult(PutStatus.EXISTS)
        else:
            text = f"the commit was answered {m.PutStatus(status).name.lower()}"
            item.result = PutResult(PutStatus.LOST, 0, text)
    return again


def granted_whole(reply: m.Reserved, options: PutOptions) -> bool:
    """The usual batch: all of it granted, one copy each, on one segment."""
    segments = reply.segments
    return (
        options.replicas == 1
        and not any(reply.status)
        and segments == segments[:2] * len(reply.status)
        and segments[:2] != _NOWHERE
    )


def _store_whole(
    context: Context,
    puts: Puts,
    todo: list[int],
    reply: m.Reserved,
    options: PutOptions,
    ready: Layout,
) -> Protocol[list[int]]:
    """Write and commit a batch that was granted whole, in columns; the first thing that is not
    as usual makes attempts of it, which then go the long way. Returns items to put again."""
    segment = int.from_bytes(reply.segments[:2], "little")
    port = context.state.port(segment)
    if port is None:
        outcome = failed_call(len(todo), Status.UNREACHABLE)
    else:
        call = BatchPutCall(ready.batch, reply.attempt, reply.term, ready.sources, ready.nbytes)
        patience = first_patience_s(context, options)
        (outcome,) = yield from call_all(context, [(port, call)], patience)
    sealed = outcome.sealed
    if sealed is None and outcome.status.any():
        items = puts.items
        attempts, failed = _one_by_one(items, todo, reply, segment, outcome)
        if context.left() > 0:
            yield from _reoffer(context, failed)
            yield from write(context, items, attempts, options)
        return (yield from commit(context, items, attempts, options))
    if sealed is None:
        columns = (outcome.crcs, outcome.slots, outcome.generations)
        sealed = (columns[0].tobytes(), columns[1].tobytes(), columns[2].tobytes())
    crcs, slots, generations = sealed
    replicas = m.ReplicaColumn(b"\x01" * len(todo), reply.segments, slots, generations)
    message = m.Commit(reply.term, reply.row, reply.attempt, crcs, replicas)
    answer = yield from ask(context, message)
    if not isinstance(answer, m.Committed):
        return todo  # lost: a sealed put may be found committed, so ask for its key again
    if answer.status == _COMMITTED * len(todo):
        if len(todo) == len(puts):
            puts.store_all()
        else:
            for i in todo:
                puts.items[i].result = _STORED
        return []
    items = puts.items
    outcome = Outcome(np.zeros(len(todo), np.uint8), u32(slots), u64(generations), u32(crcs))
    attempts, _ = _one_by_one(items, todo, reply, segment, outcome)
    return _committed(items, attempts, answer)


def _one_by_one(
    items: list[PutItem], todo: list[int], reply: m.Reserved, segment: int, outcome: Outcome
) -> tuple[list[Attempt], list[tuple[Attempt, int, Status]]]:
    """The attempts of a batch granted whole, with what was sealed of them and what failed."""
    attempts = grants(items, todo, reply).attempts
    for attempt in attempts:
        attempt.segments = []
    return attempts, _take(segment, attempts, outcome)


def abort(context: Context, attempts: list[Attempt]) -> Protocol[None]:
    message = m.Abort(
        np.array([a.row for a in attempts], np.int32).tobytes(),
        np.array([a.attempt for a in attempts], np.uint64).tobytes(),
    )
    yield from ask(context, message)


def _await(
    context: Context, items: list[PutItem], waiting: list[int], wait_until: float
) -> Protocol[None]:
    """Wait until the keys others write are settled, or say in flight. The own keys are settled."""
    left = min(wait_until, context.deadline) - context.now()
    if left > 0:
        keys = pack_keys([items[i].key for i in waiting])
        reply = yield from ask(context, m.Await(keys, int(left * 1000)))
        if isinstance(reply, m.Awaited):
            for i, status in zip(waiting, reply.status, strict=True):
                if status == m.AwaitStatus.COMMITTED:
                    items[i].result = PutResult(PutStatus.EXISTS)
                elif status == m.AwaitStatus.TIMEOUT:
                    items[i].result = PutResult(PutStatus.IN_FLIGHT)
            return
    _settle(items, waiting, PutStatus.IN_FLIGHT, "")
