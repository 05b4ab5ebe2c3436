"""Why a key is a miss, or where it lies: from what the master says now and from its event log."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

from moonpool.pool.aio import AsyncPool
from moonpool.pool.results import Miss, MissReason

EVENTS_MAX: Final = 50
PAGE: Final = 10_000
_MEANS: Final = {
    "remove": "was removed by a client",
    "evict": "was evicted to make room",
    "expire": "came to the end of its time to live",
    "lose": "lost its last copy: a node lost it or was away for too long, or its bytes were wrong",
}
_SAYS: Final[dict[str, str]] = {
    MissReason.EXPIRED: "its time to live is over",
    MissReason.IN_FLIGHT: "it is being written, and not readable before that ends",
}


async def explain_key(pool: AsyncPool, key: bytes) -> dict[str, Any]:
    """What is known of the key; the newest events last. Raises MoonpoolError."""
    matched = await pool.match_prefix([key])
    here, nodes = matched.count == 1, matched.nodes
    reason = "" if here else await _reason(pool, key)
    stat = await pool.stat()
    first = int(str(stat["next_event"])) - int(str(stat["events"]))
    recent = await _events_of(pool, key, (int(str(stat["term"])), first))
    return {
        "key": key.decode("utf-8", "backslashreplace"),
        "readable": here,
        "nodes": nodes,
        "reason": reason,
        "because": _because(here, nodes, recent, first <= 1, bool(stat["recovering"]), reason),
        "events": recent,
        "whole_log": first <= 1,
    }


async def explain_request(pool: AsyncPool, keys: list[bytes]) -> dict[str, Any]:
    """Of a request, its keys in the order of its blocks: how many lead, and the story of the first
    that does not. Raises MoonpoolError."""
    matched = await pool.match_prefix(keys)
    count = matched.count
    story: dict[str, Any] = {
        "blocks": len(keys),
        "hits": count,
        "nodes": matched.nodes,
        "behind_the_gap": 0,
        "readable": count == len(keys),
        "because": f"all {len(keys)} blocks are readable",
        "first_miss": None,
    }
    if count < len(keys):
        story["behind_the_gap"] = sum(await pool.exists(keys[count:]))
        first = await explain_key(pool, keys[count])
        story["first_miss"] = first
        story["because"] = (
            f"{count} of {len(keys)} blocks lead; block {count} ({first['key']}) is a miss: "
            f"{first['because']}"
        )
    return story


async def _reason(pool: AsyncPool, key: bytes) -> str:
    """What the pool itself says to who asks for it now."""
    (answer,) = await pool.get_many([key])
    return answer.reason.value if isinstance(answer, Miss) else ""


async def _events_of(
    pool: AsyncPool, key: bytes, position: tuple[int, int]
) -> list[dict[str, Any]]:
    """The last of the key's events that the master still has."""
    found: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
    while True:
        batch = await pool.events(position, limit=PAGE)
        if batch.rebase or not batch.events:
            return list(found)
        position = batch.position
        found.extend(
            {
                "at": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.wall_ms / 1000)),
                "kind": event.kind,
                "node": event.node,
                "size": event.size,
            }
            for event in batch.events
            if event.key == key
        )


def _because(
    here: bool,
    nodes: list[str],
    recent: list[dict[str, Any]],
    complete: bool,
    recovering: bool,
    reason: str,
) -> str:
    if here:
        return f"it is readable, from {', '.join(nodes) or 'the pool'}"
    if recovering:
        return "the master still hears what its nodes hold; ask again in a few seconds"
    if reason in _SAYS:
        return _SAYS[reason]
    if recent:
        kind, at = recent[-1]["kind"], recent[-1]["at"]
        if kind in _MEANS:
            return f"the last thing that happened: it {_MEANS[kind]} at {at}"
        return f"it is stored ({kind} at {at}); who holds it is out of reach now"
    if complete:
        return "nobody has stored it since this master started; compare the key's fields"
    return "nobody stored it lately (older events are gone); compare the key's fields"
