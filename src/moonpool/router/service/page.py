"""What the router shows: its workers for people, its figures for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from moonpool.core.exposition import Family, Histogram, Sample, exposition
from moonpool.router.fleet import Member
from moonpool.router.service.desk import Desk, Seat

if TYPE_CHECKING:
    from moonpool.router.service.relay import Relay


def workers_page(desk: Desk) -> list[dict[str, Any]]:
    """Every worker with its condition and load."""
    return [_worker(desk, seat) for seat in desk.seats.values()]


def metrics_page(desk: Desk, relay: Relay) -> str:
    return exposition(_families(desk, relay))


def _worker(desk: Desk, seat: Seat) -> dict[str, Any]:
    worker, load = seat.worker, _load(desk, seat)
    member = desk.brain.fleet.members.get(seat.id)
    return {
        "instance_id": worker.id,
        "url": worker.url,
        "role": worker.role,
        "model": worker.model,
        "block_size": desk.brain.fleet.block_size(member) if member else worker.block_size,
        "context": worker.context_tokens_max,
        "blocks": worker.kv_blocks_max,
        "transfer": worker.transfer,
        "labels": worker.labels,
        "condition": str(seat.health.condition),
        "why": seat.health.why,
        "source": seat.source,
        "running": seat.running,
        "event_batches": member.events if member else 0,
        "problems": list(member.problems.values()) if member else [],
        **load,
        **(learnt_seconds(desk, member) if member else {}),
    }


def learnt_seconds(desk: Desk, member: Member) -> dict[str, float]:
    """What a worker's tokens and blocks cost, in seconds; the mean of its ranks."""
    learner, places = desk.brain.learner, member.places
    return {
        "prefill_s": float(learner.prefill_s[places].mean()),
        "transfer_s": float(learner.transfer_s[places].mean()),
        "decode_block_s": float(learner.decode_block_s[places].mean()),
    }


def _load(desk: Desk, seat: Seat) -> dict[str, float]:
    member = desk.brain.fleet.members.get(seat.id)
    places = member.places if member is not None else []
    load = desk.brain.load
    return {
        "prefill_tokens": float(sum(load.prefill_tokens[place] for place in places)),
        "decode_blocks": float(sum(load.decode_blocks[place] for place in places)),
        "requests": float(sum(load.requests[place] for place in places)),
    }


def _families(desk: Desk, relay: Relay) -> Iterator[Family]:
    counters, seats = desk.counters, list(desk.seats.values())
    loads = [(seat.id, _load(desk, seat)) for seat in seats]
    index = desk.brain.index.stat()
    renewed = desk.brain.intake.renewed_blocks
    yield _family(
        "requests_total",
        "counter",
        "Requests by worker and how they ended.",
        [
            ("", {"worker": worker, "outcome": outcome}, count)
            for (worker, outcome), count in sorted(counters.requests.items())
        ],
    )
    yield _family(
        "refusals_total",
        "counter",
        "Requests answered by the router itself.",
        [("", {"status": status}, count) for status, count in sorted(counters.refusals.items())],
    )
    yield _family(
        "retries_total",
        "counter",
        "Attempts made again before the first byte.",
        [("", {"why": why}, count) for why, count in sorted(counters.retries.items())],
    )
    for name, value, text in (
        ("prefill_failures_total", counters.prefill_failures, "Prefill halves that failed."),
        ("hits_checked_total", counters.hits_checked, "Answers that told their cached tokens."),
        ("hit_tokens_predicted_total", counters.hits_predicted_tokens, "Predicted for these."),
        ("hit_tokens_actual_total", counters.hits_actual_tokens, "Told by their workers."),
        ("hit_tokens_error_total", counters.hits_error_tokens, "Sum of the differences."),
        ("renewed_blocks_total", renewed, "Told anew: a worker's account differed."),
    ):
        yield _family(name, "counter", text, [("", {}, value)])
    for name, histogram, text in (
        ("decision_seconds", counters.decision_s, "Time of one decision."),
        ("first_token_seconds", counters.first_token_s, "From whole request to first byte."),
        ("hit_share", counters.hit_share, "Cached share of a prompt, as told by workers."),
    ):
        yield _histogram(name, histogram, text)
    for name, value, text in (
        ("running", len(relay.running), "Requests on their way."),
        ("running_bytes", relay.bytes, "Of their bodies."),
        ("index_blocks", index["blocks"], "Distinct blocks in the index."),
        ("index_bytes", index["memory_bytes"], "Memory of the index."),
        ("index_evicted_blocks", index["evicted"], "Dropped from it for want of room, so far."),
        ("workers_ready", sum(seat.ready for seat in seats), "Workers that take requests."),
    ):
        yield _family(name, "gauge", text, [("", {}, value)])
    for key, text in (
        ("prefill_tokens", "Booked and not yet prefilled."),
        ("decode_blocks", "Blocks of running requests."),
        ("requests", "Bookings."),
    ):
        samples: list[Sample] = [("", {"worker": name}, load[key]) for name, load in loads]
        yield _family(f"worker_{key}", "gauge", text, samples)
    members = desk.brain.fleet.members.items()
    learnt = [(name, learnt_seconds(desk, member)) for name, member in members]
    for key, name, text in (
        ("prefill_s", "prefill_token_seconds", "Learnt: to compute one token of a prompt."),
        ("transfer_s", "transfer_token_seconds", "Learnt: to bring one from the pool or a peer."),
        ("decode_block_s", "decode_block_seconds", "Learnt: a held block adds to each step."),
    ):
        samples = [("", {"worker": worker}, told[key]) for worker, told in learnt]
        yield _family(f"worker_{name}", "gauge", text, samples)
    ready: list[Sample] = [("", {"worker": seat.id}, float(seat.ready)) for seat in seats]
    yield _family("worker_ready", "gauge", "1 if it takes requests.", ready)


def _family(name: str, kind: str, text: str, samples: list[Sample]) -> Family:
    return f"moonpool_router_{name}", kind, text, samples


def _histogram(name: str, histogram: Histogram, text: str) -> Family:
    return _family(name, "histogram", text, list(histogram.samples()))
