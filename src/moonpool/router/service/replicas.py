"""Several routers before the same workers, without a leader.

Each follows the booking log of every other by long polls, so a decision sees the load that others
made; on a miss all choose alike, by rendezvous hashing inside the brain. A peer that cannot be
reached loses its bookings here: its clients and its connections to workers are gone with it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs

import msgspec
import numpy as np

from moonpool.core.errors import MoonpoolError, Unreachable
from moonpool.router.base import Decision, RouteRequest, Target
from moonpool.router.http.client import Answer
from moonpool.router.http.fetch import Caller
from moonpool.router.http.request import Request
from moonpool.router.prompt import Prompt
from moonpool.router.service.booking_log import (
    Booked,
    BookingFollower,
    BookingLog,
    Entry,
    Freed,
    Page,
    Prefilled,
)
from moonpool.router.service.desk import Desk

log = logging.getLogger("moonpool.router")

PATH: Final = "/replica/bookings"
POLL_S: Final = 1.0
GATHER_S: Final = 0.005
SILENCE_S: Final = 5.0
WAITERS_MAX: Final = 256
SWEEP_S: Final = 1.0

_pages = msgspec.msgpack.Decoder(Page)


class Replicas:
    """This router's log for its peers, and the peers' bookings for this router."""

    def __init__(self, desk: Desk, peers: list[str], headers: Mapping[str, str]) -> None:
        self.log = BookingLog(secrets.token_hex(8))
        self.peers = {url: BookingFollower() for url in peers}
        self._desk = desk
        self._headers = dict(headers)
        self._waiters: list[tuple[Answer, str, int]] = []
        self._flush: asyncio.TimerHandle | None = None
        self._sweep_at = 0.0
        if peers:
            desk.on_booked.append(self._booked)
            desk.on_first_token.append(lambda name: self._add(Prefilled(name)))
            desk.on_freed.append(lambda name: self._add(Freed(name)))

    # The writer's side

    def answer(self, request: Request, answer: Answer) -> None:
        """A peer's poll: answered at once when there is something, else when there is."""
        asked = parse_qs(request.query)
        epoch = asked.get("epoch", [""])[0]
        number = asked.get("after", ["0"])[0]
        after = int(number) if number.isascii() and number.isdigit() and len(number) < 20 else -1
        page = self.log.page(epoch, after)
        if page.whole or page.entries or len(self._waiters) >= WAITERS_MAX:
            _send(answer, page)
            return
        self._waiters.append((answer, epoch, after))
        asyncio.get_running_loop().call_later(POLL_S, self._release, answer)

    def sweep(self, now: float) -> None:
        """Tell peers of what ended unreported: prefill halves, leases, workers that are gone."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_S
        load = self._desk.brain.load
        for name in self.log.living:
            if load.get(name) is None:
                self._add(Freed(name))

    def _release(self, waiting: Answer) -> None:
        for waiter in [w for w in self._waiters if w[0] is waiting]:
            self._waiters.remove(waiter)
            _send(waiter[0], self.log.page(waiter[1], waiter[2]))

    def _add(self, entry: Entry) -> None:
        self.log.add(entry)
        if self._waiters and self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(GATHER_S, self._release_all)

    def _release_all(self) -> None:
        self._flush = None
        waiters, self._waiters = self._waiters, []
        for answer, epoch, after in waiters:
            _send(answer, self.log.page(epoch, after))

    def _booked(self, request: RouteRequest, decision: Decision) -> None:
        prompt = Prompt(request)
        self._add(self._entry(prompt, decision))
        if decision.prefill is not None:
            self._add(self._entry(prompt, decision.prefill))

    def _entry(self, prompt: Prompt, decision: Decision) -> Booked:
        fleet = self._desk.brain.fleet
        member = fleet.members[decision.worker]
        return Booked(
            decision.booking_id,
            decision.worker,
            decision.rank,
            member.worker.role,
            prompt.request.model,
            decision.prompt_tokens,
            prompt.hashes(fleet.block_size(member)).astype("<u8").tobytes(),
        )

    # The reader's side

    async def follow(self, url: str) -> None:
        """Follow one peer until cancelled."""
        follower, caller = self.peers[url], Caller(url, self._headers)
        loop = asyncio.get_running_loop()
        heard, said = loop.time(), ""
        try:
            while True:
                try:
                    target = f"{PATH}?epoch={follower.epoch}&after={follower.number}"
                    answer = await caller.call(target, timeout_s=POLL_S + SILENCE_S)
                    if answer.status != 200:
                        raise Unreachable(f"{url}{PATH} answered {answer.status}")
                    page = _pages.decode(answer.body)
                except (MoonpoolError, msgspec.DecodeError) as error:
                    if said != str(error):
                        said = str(error)
                        log.warning("peer %s: %s", url, said)
                    if loop.time() - heard > SILENCE_S:
                        self._apply(url, follower.forget())
                    await asyncio.sleep(POLL_S)
                else:
                    heard, said = loop.time(), ""
                    self._apply(url, follower.follow(page))
        finally:
            caller.close()

    def _apply(self, url: str, entries: list[Entry]) -> None:
        brain, now = self._desk.brain, self._desk.clock()
        for entry in entries:
            name = f"{url} {entry.id}"
            if isinstance(entry, Prefilled):
                brain.first_token(name, now)
            elif isinstance(entry, Freed):
                brain.free(name, now)
            else:
                self._book(name, entry, now)

    def _book(self, name: str, entry: Booked, now: float) -> None:
        """Book exactly there; a worker not known here (yet) is the other router's alone."""
        member = self._desk.brain.fleet.members.get(entry.worker)
        request = RouteRequest(
            model=entry.model,
            hashes=np.frombuffer(entry.hashes[: len(entry.hashes) // 8 * 8], "<u8").astype(
                np.uint64
            ),
            prompt_tokens=entry.prompt_tokens,
            role=entry.role,
            pin=Target(entry.worker, entry.rank),
            tolerates=member.worker.taints if member is not None else frozenset(),
            booking_id=name,
        )
        try:
            self._desk.brain.decide(request, now)
        except MoonpoolError as error:
            log.debug("a peer's booking is passed over: %s", error)


def _send(answer: Answer, page: Page) -> None:
    answer.send(200, msgspec.msgpack.encode(page), b"application/msgpack")
