"""What an answer says about itself: cached tokens out of its last bytes, tokens out of its events.

It reads bytes that pass by and never holds an answer back.
"""

from __future__ import annotations

import re
from typing import Final

TAIL_BYTES: Final = 4096
_CACHED: Final = re.compile(rb'"cached_tokens"\s*:\s*(\d{1,9})')
_EVENT_END: Final = b"\n\n"


class UsageWatch:
    """Watches one answer. `events` counts server-sent events, each about one token."""

    __slots__ = ("_before", "_last", "events")

    def __init__(self) -> None:
        self._before = b""
        self._last = b""
        self.events = 0

    def see(self, data: bytes) -> int:
        """Events in `data`."""
        self._before, self._last = self._last, data
        found = data.count(_EVENT_END)
        self.events += found
        return found

    def cached_tokens(self) -> int | None:
        """Prompt tokens that the worker did not compute, if its answer says so."""
        tail = self._last[-TAIL_BYTES:]
        if len(tail) < TAIL_BYTES:
            tail = self._before[-TAIL_BYTES:] + tail
        found = _CACHED.findall(tail)
        return int(found[-1]) if found else None
