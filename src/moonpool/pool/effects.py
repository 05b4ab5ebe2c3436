"""What a state machine asks of its shell. The shells (asyncio, in-process, simulated) do it."""

from __future__ import annotations

from typing import NamedTuple

from moonpool.pool.messages import Message


class Send(NamedTuple):
    """Send `message` on `session`: the reply to `request_id`, or a push to a node when
    that is 0."""

    session: int
    request_id: int
    message: Message


Effect = Send
