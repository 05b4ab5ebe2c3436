"""What a state machine asks of its shell. The shells (asyncio, in-process, simulated) do it."""

from __future__ import annotations

from dataclasses import dataclass

from moonpool.pool.messages import Message


@dataclass(frozen=True, slots=True)
class Send:
    """Send `message` on `session`: the reply to `request_id`, or a push when that is 0."""

    session: int
    request_id: int
    message: Message


Effect = Send
