"""What the connector counts. Names are those of the Prometheus metrics without their prefix."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

# name -> (help, label of its parts or ""). Every one is exported from the start, also at 0.
COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "lookup_tokens": ("Prompt tokens the pool was asked for, beyond vLLM's own hits.", ()),
    "hit_tokens": ("Prompt tokens that were to be loaded from the pool.", ()),
    "loaded_tokens": ("Prompt tokens that were loaded from the pool.", ()),
    "loaded_bytes": ("Bytes loaded from the pool by all workers.", ()),
    "loads": ("Requests of which blocks were loaded.", ()),
    "load_seconds": ("Time from the begin of loads to their end, summed.", ()),
    "load_failed_blocks": (
        "Blocks that were to be loaded and were computed instead, by reason.",
        ("absent", "evicted", "corrupt", "deadline", "unreachable", "away", "cancelled", "other"),
    ),
    "lookup_failures": ("Lookups that were no answer within their deadline.", ()),
    "lookups_skipped": (
        "Requests for which the pool was not asked, by reason.",
        ("away", "short", "too_small", "off"),
    ),
    "saved_blocks": ("Blocks stored in the pool.", ()),
    "saved_bytes": ("Bytes stored in the pool.", ()),
    "save_existing_blocks": ("Blocks that another engine had stored meanwhile.", ()),
    "save_dropped_blocks": (
        "Blocks that were to be stored and are not, by reason.",
        ("away", "buffer", "failed_load", "full", "orphan", "in_flight", "other"),
    ),
}


class Counters:
    """Sums since the last `take`. Thread-safe; nothing here ever raises for a name it knows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: Counter[str] = Counter()

    def add(self, name: str, value: float = 1, reason: str = "") -> None:
        parts = COUNTERS[name][1]
        if parts and reason not in parts:
            reason = "other"
        with self._lock:
            self._sums[f"{name}/{reason}" if parts else name] += value  # type: ignore[assignment]

    def take(self) -> dict[str, float]:
        """What was counted since the last call."""
        with self._lock:
            sums, self._sums = self._sums, Counter()
        return dict(sums)


def merged(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The sums of both."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
