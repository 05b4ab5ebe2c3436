"""Why a put was not stored, as a status and in words that name the cause."""

from __future__ import annotations

from moonpool.core.units import counted
from moonpool.pool.client_state import ClientState
from moonpool.pool.protocol_reserve import Attempt, PutOptions
from moonpool.pool.results import PutResult, PutStatus


def copies_needed(options: PutOptions) -> int:
    """How many sealed copies count as stored."""
    return min(options.min_replicas or options.replicas, options.replicas)


def ran_out(
    state: ClientState, options: PutOptions, why: PutStatus | None, held: bool = False
) -> PutResult:
    """Its time ended first. `why`: what the master said of it last, None: it had granted it."""
    few = state.nodes_up < copies_needed(options)
    if why is PutStatus.FULL and held:
        text = "nothing there may be evicted: it is pinned, leased or being written"
        return PutResult(why, 0, text)
    if why is PutStatus.FULL:
        return PutResult(why, 0, "no room came free in time")
    if why is PutStatus.THROTTLED:
        return PutResult(why, 0, "its tenant's turn to write did not come in time")
    if why is PutStatus.RECOVERING:
        return PutResult(why, 0, "the master still waits for its nodes")
    if why is PutStatus.UNREACHABLE or few:
        return PutResult(PutStatus.UNREACHABLE, 0, f"too few nodes: {_asked(state, options)}")
    return PutResult(PutStatus.UNREACHABLE, 0, "the deadline passed before it was committed")


def unsealed(state: ClientState, options: PutOptions, attempt: Attempt) -> PutResult:
    """Too few of its copies were sealed; the last agent that failed says why."""
    why = attempt.why or "no way to the node"
    if options.replicas > 1:
        sealed = len(attempt.sealed)
        why = f"{sealed} of {options.replicas} copies written, {_asked(state, options)}: {why}"
    return PutResult(_status_of(attempt.why), 0, why)


def _status_of(why: str) -> PutStatus:
    if why.startswith(("no_space", "no_slot")):
        return PutStatus.FULL
    # The claim is gone: the reservation ended, or the master was replaced.
    return PutStatus.LOST if why.startswith(("moved", "stale_term")) else PutStatus.UNREACHABLE


def _asked(state: ClientState, options: PutOptions) -> str:
    up, needed = state.nodes_up, copies_needed(options)
    least = "" if needed == options.replicas else f", at least {needed}"
    return f"{counted(up, 'node')} up, replicas={options.replicas}{least}"
