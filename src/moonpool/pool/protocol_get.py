"""Reading: cached placements first, then the master; every replica is tried within the deadline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from moonpool.pool import messages as m
from moonpool.pool.client_state import Placement, Replica
from moonpool.pool.columns import i32, pack_keys, replica_starts, u8, u16, u32, u64
from moonpool.pool.ports import BELOW, Buffer, Outcome, Port, ReadCall
from moonpool.pool.protocol import Context, MasterLost, Protocol, ask, call_all, learn_topology
from moonpool.pool.protocol_read import Wanted, read_wanted, report
from moonpool.pool.read_race import own_memory
from moonpool.pool.results import Hit, Miss, MissReason

LOOKS_MAX = 4  # how often one call asks for a key's placement before it says miss

_REASON = {
    m.LookupStatus.ABSENT: MissReason.ABSENT,
    m.LookupStatus.IN_FLIGHT: MissReason.IN_FLIGHT,
    m.LookupStatus.UNREACHABLE: MissReason.UNREACHABLE,
    m.LookupStatus.EXPIRED: MissReason.EXPIRED,
    m.LookupStatus.RECOVERING: MissReason.RECOVERING,
    m.LookupStatus.EVICTED: MissReason.EVICTED,
}

_FOUND = bytes([m.LookupStatus.FOUND])


def lookup(
    context: Context, keys: Sequence[bytes], *, prefix: bool = False
) -> Protocol[list[Placement | Miss]]:
    """Ask the master for placements and remember them. With `prefix` only the leading run."""
    state = context.state
    reply = yield from ask(context, m.Lookup(pack_keys(keys), prefix, state.touches.take()))
    if isinstance(reply, MasterLost):
        reason = MissReason.REFUSED if reply.refused else MissReason.UNREACHABLE
        return [Miss(reason, reply.text)] * len(keys)
    if not isinstance(reply, m.Found):
        return [Miss(MissReason.UNREACHABLE, f"unexpected answer {reply!r}")] * len(keys)
    if not (yield from learn_topology(context, reply.topology_version)):
        return [Miss(MissReason.UNREACHABLE, "the master went away")] * len(keys)
    return _remember(context, keys, reply)


def _remember(context: Context, keys: Sequence[bytes], reply: m.Found) -> list[Placement | Miss]:
    state = context.state
    starts = replica_starts(u8(reply.replicas.counts))
    segments = u16(reply.replicas.segment).tolist()
    slots = u32(reply.replicas.slot).tolist()
    generations = u64(reply.replicas.generation).tolist()
    rows, sequences = i32(reply.row).tolist(), u64(reply.sequence).tolist()
    sizes = u64(reply.size).tolist()
    ports = {segment: state.port(segment) for segment in set(segments)}
    # The usual answer: a run of keys found, one copy each.
    run = len(reply.status) - len(reply.status.lstrip(_FOUND))
    reached = [port for segment in segments[:run] if (port := ports[segment]) is not None]
    below = any(port is not None and port.kind in BELOW for port in ports.values())
    if len(reached) < run or below or reply.replicas.counts[:run].strip(b"\1"):
        reached, run = [], 0
    best = map(Replica, reached, slots, generations)
    placed = list(map(Placement, sizes, rows, sequences, zip(best, strict=True)))  # 1-tuples
    state.remember_all(keys[:run], placed)
    answers: list[Placement | Miss] = [*placed]
    for i in range(run, len(reply.status)):
        status = reply.status[i]
        if status != m.LookupStatus.FOUND:
            answers.append(Miss(_REASON[m.LookupStatus(status)]))
            continue
        found = [
            Replica(port, slots[j], generations[j])
            for j in range(starts[i], starts[i + 1])
            if (port := ports[segments[j]]) is not None
        ]
        if not found:
            answers.append(Miss(MissReason.UNREACHABLE, "no replica's node can be reached"))
            continue
        if len(found) > 1:
            found.sort(key=lambda one: state.rank(one.port))
        placement = Placement(sizes[i], rows[i], sequences[i], tuple(found))
        if found[0].port.kind not in BELOW:  # it may be in memory by the next time
            state.remember(keys[i], placement)
        answers.append(placement)
    return answers


def fetch(
    context: Context,
    keys: Sequence[bytes],
    buffers: Sequence[Buffer] | None,
    *,
    verify: bool = True,
) -> Protocol[list[Hit | Miss]]:
    """Copy each object into its buffer (larger is fine), or with None into bytes of its own."""
    known = yield from _fetch_known(context, keys, buffers, verify)
    if known is not None:
        return known
    results: list[Hit | Miss] = [Miss(MissReason.DEADLINE)] * len(keys)
    wanted = [
        Wanted(i, key, buffer)
        for i, (key, buffer) in enumerate(zip(keys, buffers or [None] * len(keys), strict=True))
    ]
    for want in wanted:
        want.placement = context.state.cache.get(want.key)
    corrupt: list[tuple[Placement, Replica]] = []
    while wanted:
        wanted = yield from _place(context, wanted, results)
        if wanted:
            wanted = yield from read_wanted(context, wanted, results, corrupt, verify)
        if context.left() <= 0:
            break
    for want in wanted:
        results[want.index] = Miss(MissReason.DEADLINE)
    hits = [i for i, result in enumerate(results) if isinstance(result, Hit)]
    touch(context, [keys[i] for i in hits])
    if corrupt:
        yield from report(context, corrupt)
    return results


def _fetch_known(
    context: Context, keys: Sequence[bytes], buffers: Sequence[Buffer] | None, verify: bool
) -> Protocol[list[Hit | Miss] | None]:
    """The usual batch: all placements known, all best copies on segments mapped here, all of them
    as they should be. None: something is not so."""
    state = context.state
    placements = list(filter(None, map(state.cache.get, keys)))
    if not placements or len(placements) < len(keys):
        return None
    ports, slots, generations = zip(*[p.replicas[0] for p in placements], strict=True)
    groups = _by_port(ports)
    if not all(port.local for port in groups):
        return None
    targets = own_memory([p.size for p in placements]) if buffers is None else buffers
    whole = ReadCall(np.array(slots, np.uint32), np.array(generations, np.uint64), targets, verify)
    calls = [_part(whole, which) for which in groups.values()] if len(groups) > 1 else [whole]
    outcomes = yield from call_all(context, list(zip(groups, calls, strict=True)))
    if any(outcome.status.any() for outcome in outcomes):
        return None
    placements.reverse()
    rows, sequences = [p.row for p in placements], [p.sequence for p in placements]
    state.touches.extend(rows, sequences, context.now())
    if buffers is None:
        return [Hit(t.nbytes, p.node, t.tobytes()) for t, p in zip(targets, ports, strict=True)]
    return _hits(groups, outcomes)


def _part(call: ReadCall, which: list[int]) -> ReadCall:
    buffers = [call.buffers[i] for i in which]
    return ReadCall(call.slots[which], call.generations[which], buffers, call.verify)


def _by_port(ports: Sequence[Port]) -> dict[Port, list[int]]:
    """Which ones go to each."""
    if len(set(ports)) == 1:
        return {ports[0]: list(range(len(ports)))}
    groups: dict[Port, list[int]] = {port: [] for port in ports}
    for i, port in enumerate(ports):
        groups[port].append(i)
    return groups


def _hits(groups: dict[Port, list[int]], outcomes: Sequence[Outcome]) -> list[Hit | Miss]:
    """In the order of the keys; equal hits are one object."""
    found: list[Hit | Miss] = []
    for port, outcome in zip(groups, outcomes, strict=True):
        sizes = outcome.sizes.tolist()
        hits = {size: Hit(size, port.node) for size in set(sizes)}
        found += [hits[size] for size in sizes]
    if len(groups) == 1:
        return found
    placed = dict(zip(chain.from_iterable(groups.values()), found, strict=True))
    return [placed[i] for i in range(len(found))]


def touch(context: Context, keys: Sequence[bytes]) -> None:
    """Log reads, last key first: the head of a chain ends up most recent."""
    state, now = context.state, context.now()
    for key in reversed(keys):
        placement = state.cache.get(key)
        if placement is not None:
            state.touches.add(placement.row, placement.sequence, now)


def _place(
    context: Context, wanted: list[Wanted], results: list[Hit | Miss]
) -> Protocol[list[Wanted]]:
    """Give every wanted key a placement with an untried replica, or settle it as a miss."""
    ready, ask_for = [], []
    for want in wanted:
        if want.placement is not None and want.next_replica() is not None:
            ready.append(want)
        elif want.looks < LOOKS_MAX:
            ask_for.append(want)
        else:
            results[want.index] = Miss(want.reason)
    if not ask_for:
        return ready
    answers = yield from lookup(context, [want.key for want in ask_for])
    for want, answer in zip(ask_for, answers, strict=True):
        want.looks += 1
        if isinstance(answer, Miss):
            results[want.index] = answer if want.looks == 1 else _worst(want, answer)
            continue
        want.placement = answer
        if want.next_replica() is None:
            context.state.forget(want.key, answer)
            results[want.index] = Miss(want.reason)
        else:
            ready.append(want)
    ready.sort(key=lambda want: want.index)
    return ready


def _worst(want: Wanted, answer: Miss) -> Miss:
    """A read that failed for a reason of its own says that reason, not the later look's."""
    if want.reason in (MissReason.CORRUPT, MissReason.UNREACHABLE):
        return Miss(want.reason, answer.text)
    return answer
