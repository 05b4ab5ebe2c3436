"""Subscriptions to workers' KV events, for as long as the workers serve."""

from __future__ import annotations

import asyncio
from typing import Final

from moonpool.core.errors import BadInput, MissingExtra
from moonpool.router.service.desk import Desk, Seat
from moonpool.router.subscriber import EventSubscriber

_NO_EVENTS: Final = "events"


class Followed:
    """Follows each ready worker that named an endpoint; a data-parallel rank n adds n to ports."""

    def __init__(self, desk: Desk, digest_s: float) -> None:
        self._desk = desk
        self._digest_s = digest_s
        self._subscribers: dict[str, list[EventSubscriber]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        desk.on_ready.append(self._ready)
        for left in (desk.on_down, desk.on_drained, desk.on_gone):
            left.append(self._left)

    def subscribers(self, worker_id: str) -> list[EventSubscriber]:
        """One a rank; none for a worker that is not followed."""
        return self._subscribers.get(worker_id, [])

    async def close(self) -> None:
        """Follow nobody any more."""
        for worker_id in list(self._subscribers):
            self._end(worker_id)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _ready(self, seat: Seat) -> None:
        if not seat.spec.events:
            return
        self._end(seat.id)
        brain, worker = self._desk.brain, seat.worker
        try:
            made = [
                EventSubscriber(
                    brain,
                    seat.id,
                    _of_rank(seat.spec.events, rank),
                    replay=_of_rank(seat.spec.replay, rank),
                    rank=rank,
                    digest_s=self._digest_s,
                )
                for rank in range(worker.ranks)
            ]
        except MissingExtra as error:
            brain.fleet.member(seat.id).problems[_NO_EVENTS] = str(error)
            return
        self._subscribers[seat.id] = made
        try:
            for subscriber in made:
                subscriber.start()
        except BadInput as error:
            brain.fleet.member(seat.id).problems[_NO_EVENTS] = str(error)
            self._end(seat.id)

    def _left(self, seat: Seat) -> None:
        self._end(seat.id)

    def _end(self, worker_id: str) -> None:
        for subscriber in self._subscribers.pop(worker_id, []):
            task = asyncio.get_running_loop().create_task(subscriber.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def _of_rank(endpoint: str, rank: int) -> str:
    """vLLM binds rank n's sockets n ports above the first one's."""
    head, colon, port = endpoint.rpartition(":")
    return f"{head}{colon}{int(port) + rank}" if rank and port.isdigit() else endpoint
