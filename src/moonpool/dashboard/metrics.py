"""The master's figures as Prometheus reads them. Names are documented in docs/operations.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from moonpool.core.exposition import Family, Histogram, Sample, exposition
from moonpool.dashboard.watch import Figures, Watch
from moonpool.pool import messages as m
from moonpool.pool.ports import BELOW
from moonpool.pool.read_times import BOUNDS_S, TRANSPORTS

_GAUGES: Final = {
    "term": "Number of the master's rule.",
    "objects": "Committed objects.",
    "replicas": "Their copies.",
    "rows": "Rows of the catalog.",
    "rows_max": "Rows it can have.",
    "table_bytes": "Memory of the catalog's table.",
    "capacity_bytes": "What living nodes may commit.",
    "committed_bytes": "What they have.",
    "promised_bytes": "What is promised to writers.",
    "reservations": "Keys promised to writers.",
    "leases": "Leases of read sessions.",
    "soft_pins": "Objects softly pinned, with those above them.",
    "groups": "Groups that have objects.",
    "hot_objects": "Objects with one copy more for being read often.",
    "copies_open": "Objects being copied for repair, drain or being hot.",
    "waiters": "Puts waiting for another writer of their key.",
    "held_puts": "Calls waiting for the end of a recovery.",
    "throttled_puts": "Puts waiting for their tenant's turn.",
    "retire_orders": "Removals not yet confirmed by their node.",
    "tombstones": "Removals remembered for nodes that are away.",
    "tier_capacity_bytes": "What living tiers below memory may hold.",
    "tier_committed_bytes": "What they do.",
    "tier_objects": "Copies there.",
    "offload_queue": "Puts that wait to be copied down.",
    "sessions": "Connections.",
}
_COUNTERS: Final = {
    "evictions": "Decisions that evicted.",
    "evicted_objects": "Objects that went.",
    "futile_evictions": "Searches for room that found nothing that may go.",
    "futile_skipped": "Puts answered so without another search.",
    "groups_overflowed": "Objects that stand for themselves because their group is full.",
    "copies_made": "Objects copied for repair, drain or being hot.",
    "copies_failed": "Those that were not.",
    "next_event": "Events.",
    "requests": "Messages handled.",
    "reads": "Objects that clients told they read.",
    "read_bytes": "Bytes of these.",
    "failures": "Requests answered with an error.",
    "refused_chunks": "Broken inventory reports.",
    "retire_refused": "Removals refused because too many waited.",
    "tier_reads": "Reads of objects that memory had no copy of.",
    "offloaded": "Objects copied to a tier below memory.",
    "offload_failed": "Those that a tier did not take.",
    "offload_skipped": "Those that found the queue full.",
    "demoted": "Objects that left memory and have a copy below.",
    "forgotten": "Objects that left a tier and have another copy.",
    "promoted": "Objects that came back to memory.",
    "promotions_refused": "Those for which nothing cooler would go.",
}
_ANSWERS: Final = {
    "lookups": "Keys looked up, by what was said; all but found are misses.",
    "puts": "Keys put, by what came of it.",
    "exists": "Keys asked for by exists.",
}
_WORDS: Final = {
    "lookups": tuple(one.name.lower() for one in m.LookupStatus),
    "puts": tuple(one.name.lower() for one in m.PutStatus if one is not m.PutStatus.GRANTED),
    "exists": ("found", "absent"),
}
"""What may be said: exported from the start, so that a rate begins with the first of them."""
_SEGMENT: Final = {
    "alive": "1 if the node is heard.",
    "capacity_bytes": "What the segment may commit.",
    "committed_bytes": "What it has.",
    "promised_bytes": "What is promised to writers.",
    "objects": "Objects with a copy there.",
}
_TENANT: Final = {
    "quota_bytes": "What the tenant has for certain.",
    "quota_objects": "The same in objects; 0: not said.",
    "committed_bytes": "What it has: all copies.",
    "promised_bytes": "What is promised to its writers.",
    "borrowed_bytes": "What of both is beyond its quota.",
    "objects": "Its committed objects.",
}
_TENANT_SUMS: Final = {
    "admitted_bytes": "Bytes that it was promised.",
    "admitted_objects": "Objects that it was promised.",
    "evicted_bytes": "Bytes of its objects that went.",
    "evicted_objects": "Its objects that went.",
    "refused": "Keys that its quota did not take.",
    "throttled": "Keys whose turn to be written did not come in time.",
}


def metrics_page(watch: Watch) -> str:
    """The text format; without a master just that it is away."""
    return exposition(_families(watch))


def _families(watch: Watch) -> Iterator[Family]:
    last = watch.last
    up = float(not watch.why_not)
    yield _family("up", "gauge", "1 if the master answers.", [("", {}, up)])
    yield _family("ready", "gauge", "1 if clients may come.", [("", {}, float(not watch.unready))])
    if last is None or watch.why_not:
        return
    figures = last.figures
    recovering = float(figures["recovering"])
    text = "1 while the master hears its nodes."
    yield _family("recovering", "gauge", text, [("", {}, recovering)])
    for names, kind, suffix in ((_GAUGES, "gauge", ""), (_COUNTERS, "counter", "_total")):
        for name, text in names.items():
            shown = {"next_event": "events"}.get(name, name)
            yield _family(f"{shown}{suffix}", kind, text, [("", {}, float(figures[name]))])
    for name, text in _ANSWERS.items():
        counts = dict.fromkeys(_WORDS[name], 0) | figures["answers"][name]
        samples = [("", {"status": status}, float(count)) for status, count in counts.items()]
        yield _family(f"{name}_total", "counter", text, samples)
    hits = [("", {"tier": tier}, float(count)) for tier, count in hits_by_tier(figures).items()]
    yield _family("hits_total", "counter", "Objects read, by the tier that had them.", hits)
    yield _family(
        "request_seconds",
        "histogram",
        "Time of a request in the master.",
        _buckets(figures["handling_s"]),
    )
    yield _family("read_seconds", "histogram", "Time of a read at a client.", _reads(figures))
    yield from _segments(figures)
    yield from _tenants(figures)


def hits_by_tier(figures: Figures) -> dict[str, int]:
    """Each read counts once: for memory, or for the fastest tier below that had the object."""
    in_memory = int(figures["reads"]) - int(figures["tier_reads"])
    below: Mapping[str, int] = figures["tier_reads_on"]
    return {"memory": in_memory, **dict.fromkeys(BELOW, 0), **below}


def _tenants(figures: Figures) -> Iterator[Family]:
    tenants: Mapping[str, Mapping[str, float]] = figures["tenants"]
    for names, kind, suffix in ((_TENANT, "gauge", ""), (_TENANT_SUMS, "counter", "_total")):
        for name, text in names.items():
            samples = [("", {"tenant": word}, float(one[name])) for word, one in tenants.items()]
            yield _family(f"tenant_{name}{suffix}", kind, text, samples)


def _segments(figures: Figures) -> Iterator[Family]:
    segments: Mapping[str, dict[str, Any]] = figures["segments"]
    labels = {
        number: {"segment": number, "node": one["node"], "medium": one["medium"]}
        for number, one in segments.items()
    }
    for name, text in _SEGMENT.items():
        samples = [("", labels[number], float(one[name])) for number, one in segments.items()]
        yield _family(f"segment_{name}", "gauge", text, samples)
    for name in sorted({name for one in segments.values() for name in one["usage"]}):
        samples = [
            ("", labels[number], float(one["usage"][name]))
            for number, one in segments.items()
            if name in one["usage"]
        ]
        yield _family(f"segment_usage_{name}", "gauge", "As its node last reported.", samples)


def _reads(figures: Figures) -> Iterator[Sample]:
    """By transport, from the start. A master of the release before says nothing of it."""
    told: Mapping[str, Mapping[str, Any]] = figures.get("read_s", {})
    for transport in TRANSPORTS:
        shown = told.get(transport) or Histogram(BOUNDS_S).as_dict()
        yield from _buckets(shown, {"transport": transport})


def _buckets(told: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> Iterator[Sample]:
    total, labels = 0, labels or {}
    for bound, count in zip(told["bounds"], told["counts"], strict=False):
        total += count
        yield "_bucket", {**labels, "le": f"{bound:g}"}, total
    yield "_bucket", {**labels, "le": "+Inf"}, told["count"]
    yield "_sum", labels, told["sum"]
    yield "_count", labels, told["count"]


def _family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Family:
    return f"moonpool_{name}", kind, text, samples
