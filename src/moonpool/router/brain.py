"""The router's brain: facts in, decisions out. No clock, thread, socket or random number.

`now` is seconds of one monotonic clock, `draw` a random number of [0, 1) for a temperature above 0.
The service wraps it, the planner replays traces through it; it must never block or fail because a
worker does. Not safe for several threads at once; only its index is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from moonpool.core.errors import NoWorker, RequestTooLarge, WorkersBusy
from moonpool.router.base import Decision, Event, RouteRequest, Score, Tier, Worker
from moonpool.router.choose import cheapest, drawn
from moonpool.router.config import BrainConfig
from moonpool.router.cost import Facts
from moonpool.router.fleet import Fleet, Member
from moonpool.router.guesses import Generations
from moonpool.router.index import (
    GUESS_SLOTS,
    PREDICTION_SLOTS,
    WALKS_MAX,
    Applied,
    Message,
    Places,
    PrefixIndex,
)
from moonpool.router.intake import Intake
from moonpool.router.learner import Learner
from moonpool.router.load import Booking, Column, LoadBook
from moonpool.router.prompt import Prompt
from moonpool.router.sessions import Sessions
from moonpool.router.survey import Survey

_PREFILL = "/prefill"
"""What the booking on the prefill worker adds to the name of the request's own."""


_score: Callable[[Iterable[object]], Score] = partial(tuple.__new__, Score)
"""A score from its fields in order; a third of the time of the named call, 64 times a decision."""


class Brain:
    """Workers, their caches and loads, and where the next request goes.

    The life of a request: `decide` books it, `first_token` ends its prefill, `output_block` grows
    it, `free` ends it; whoever reports nothing loses the booking to its lease.
    """

    def __init__(self, config: BrainConfig | None = None) -> None:
        self.config = config = config or BrainConfig()
        self.fleet = Fleet()
        self.load = LoadBook(config.lease_s)
        self.index = PrefixIndex(config.index_bytes_max)
        self.learner = Learner(config.prefill_s, config.transfer_s, config.cost.decode_block_s)
        self.sessions = Sessions(config.session_ttl_s, config.sessions_max)
        self.intake = Intake(self.fleet, self.index)
        self.predicted_tokens = 0
        """Hit tokens predicted for the requests that `free` reported a figure of."""
        self.actual_tokens = 0
        """And what their workers really had."""
        self._survey = Survey(
            self.fleet, self.load, self.index, self.learner, config.cost, config.peers_transfer
        )
        self._guesses = Generations(config.guess_ttl_s, GUESS_SLOTS)
        self._predictions = Generations(config.predicted_ttl_s, PREDICTION_SLOTS)
        self._numbers = itertools.count(1)
        self._make_room()

    # Workers

    def add_worker(self, worker: Worker) -> None:
        """Raises BadInput when the id is taken."""
        self.fleet.add(worker)
        self._make_room()

    def remove_worker(self, worker_id: str) -> bool:
        """Its bookings, blocks and sessions go with it. False: not known."""
        member = self.fleet.remove(worker_id)
        if member is None:
            return False
        for place in member.places:
            self.load.drop(place)
            self.index.drop(place)
            self.learner.forget(place)
        self.sessions.forget_worker(worker_id)
        return True

    def mark_busy(self, worker_id: str, until: float) -> None:
        """The worker said that it takes no more; ends by itself. Raises BadInput: not known."""
        self.fleet.mark_busy(worker_id, until)

    # Requests

    def decide(
        self, request: RouteRequest, now: float, draw: float = 0.0, *, book: bool = True
    ) -> Decision:
        """Where the request goes; without `book` only what would be.

        A worker of role 'decode' that is chosen for a whole request gets a prefill worker in
        `prefill`, unless the uncached part of the prompt is short or nobody prefills.

        Raises NoWorker, WorkersBusy, RequestTooLarge; BadInput on a request that makes no sense.
        """
        self.tick(now)
        prompt = Prompt(request)
        booking = (request.booking_id or f"b{next(self._numbers)}") if book else ""
        decision = self._decide(prompt, request.role, now, draw, booking)
        if request.role == "both" and self.fleet.role(decision.worker) == "decode":
            return self._split(prompt, decision, now, draw)
        return decision

    def first_token(self, booking_id: str, now: float) -> bool:
        """The prompt is computed: learn how long it took. False: unknown or already told."""
        prefill = self.load.free(booking_id + _PREFILL)
        booking = self.load.first_token(booking_id, now)
        for done in (prefill, booking):
            if done is not None:
                self.learner.first_token(done, now)
        return prefill is not None or booking is not None

    def output_block(self, booking_id: str, now: float, count: float = 1) -> bool:
        """The answer grew by `count` blocks; also renews the lease. False: unknown.

        The time between two calls tells how long the steps took in which it grew.
        """
        booking = self.load.output_blocks(booking_id, now, count)
        if booking is None:
            return False
        place, load = booking.place, self.load
        tokens = count * self.fleet.block_size(self.fleet.member_at(place))
        quiet = bool(load.prefill_tokens[place] < 1)
        self.learner.grown(booking, now, tokens, float(load.decode_blocks[place]), quiet)
        return True

    def free(self, booking_id: str, now: float, hit_tokens: int | None = None) -> Booking | None:
        """The request is over; `hit_tokens`, when the worker told, checks the prediction."""
        self.load.free(booking_id + _PREFILL)
        booking = self.load.free(booking_id)
        if booking is not None and hit_tokens is not None:
            self.predicted_tokens += booking.hit_tokens
            self.actual_tokens += hit_tokens
        return booking

    def tick(self, now: float) -> list[Booking]:
        """End leases, sessions and guesses that are over; `decide` does it, too."""
        for generations in (self._guesses, self._predictions):
            for slot in generations.turn(now):
                self.index.drop_slot(slot)
        self.sessions.expire(now)
        return self.load.expire(now)

    # Events

    def apply_event(self, worker_id: str, event: Event) -> None:
        """What a worker's cache did, in own hashes. Raises BadInput: unknown worker or rank."""
        self.intake.apply(worker_id, event)

    def apply_pool_events(self, events: Iterable[Event]) -> None:
        """What the pool, which serves every worker, gained and lost, in own hashes."""
        self.intake.apply_pool(events)

    def apply_message(
        self, worker_id: str, message: Message, walks_max: int = WALKS_MAX
    ) -> Applied:
        """One message as vLLM, SGLang or Moonpool's engine publishes it; of events that look at
        the whole index at most `walks_max` count.

        Raises BadInput: unknown worker, or no message at all.
        """
        return self.intake.apply_message(worker_id, message, walks_max)

    # Inside

    def _decide(self, prompt: Prompt, role: str, now: float, draw: float, booking: str) -> Decision:
        request = prompt.request
        places = self._fitting(prompt, self.fleet.eligible(request, role))
        facts, costs = self._survey.look(prompt, places)
        costs = self._with_busy(costs, places, now)
        held = facts.held_tokens.astype(np.int64)
        size = int(facts.block_size[0])
        salt = prompt.salt(size, int(held.max()) // size)
        chosen, reason = self._choose(request, costs, places, now, draw, salt)
        place = int(places[chosen])
        target = self.fleet.target(place)
        hit = prompt.hit(int(held[chosen]), int(facts.block_size[chosen]))
        if booking:
            pool = int(facts.pool_tokens[chosen])
            work = self.config.cost.prefill_tokens(facts, chosen)
            self._book(booking, prompt, place, now, hit, pool, work)
        return Decision(
            target.worker,
            target.rank,
            self._scores(facts, costs, places),
            hit,
            booking,
            reason,
            prompt.tokens,
        )

    def _split(self, prompt: Prompt, decode: Decision, now: float, draw: float) -> Decision:
        """Add a prefill worker to the decision, where the prompt is worth the way there."""
        uncached = prompt.tokens - decode.predicted_hit_tokens
        near = self.config.remote_prefill_tokens
        mostly_cached = uncached < self.config.remote_prefill_ratio * prompt.tokens
        if uncached < near or (mostly_cached and uncached < 4 * near):
            return decode
        try:
            booking = decode.booking_id and decode.booking_id + _PREFILL
            prefill = self._decide(prompt, "prefill", now, draw, booking)
        except (NoWorker, WorkersBusy):
            return decode
        self.load.prefills_elsewhere(decode.booking_id)
        return decode._replace(prefill=prefill)

    def _fitting(self, prompt: Prompt, places: Places) -> Places:
        needed = prompt.tokens + max(1, prompt.request.output_tokens)
        contexts = self.fleet.contexts(places)
        kept = contexts >= needed
        if kept.all():
            return places
        if not kept.any():
            raise RequestTooLarge(
                f"prompt of {prompt.tokens} tokens and an answer of"
                f" {max(1, prompt.request.output_tokens)} exceed the largest context here,"
                f" {int(contexts.max())} tokens"
            )
        return places[kept]

    def _with_busy(self, costs: Column, places: Places, now: float) -> Column:
        """Infinite where a limit is reached. Raises WorkersBusy where that is everywhere."""
        limits, load = self.config, self.load
        limited = limits.busy_prefill_tokens or limits.busy_decode_blocks or limits.busy_requests
        if not limited and not self.fleet.any_marked_busy:
            return costs
        busy = self.fleet.marked_busy(places, now)
        for limit, column in (
            (limits.busy_prefill_tokens, load.prefill_tokens),
            (limits.busy_decode_blocks, load.decode_blocks),
            (limits.busy_requests, load.requests),
        ):
            if limit:
                busy |= column[places] >= limit
        if busy.all():
            raise WorkersBusy(
                f"all {len(places)} eligible workers are above their busy limits",
                self.config.retry_after_s,
            )
        return np.where(busy, np.inf, costs) if busy.any() else costs

    def _choose(
        self,
        request: RouteRequest,
        costs: Column,
        places: Places,
        now: float,
        draw: float,
        salt: int,
    ) -> tuple[int, str]:
        """Place in `costs`, and why."""
        if len(places) == 1:
            return 0, "pin" if request.pin is not None else "only"
        if request.session and self.config.affinity != "off":
            kept = self._session_choice(request.session, costs, places, now)
            if kept is not None:
                return kept, "session"
        temperature = request.temperature
        if temperature is None:
            temperature = self.config.temperature
        if temperature > 0:
            return drawn(costs, temperature, draw), "cost"
        booked = self.load.booked_tokens[places]
        return cheapest(costs, booked, self.fleet.keys(places), salt), "cost"

    def _session_choice(
        self, session: str, costs: Column, places: Places, now: float
    ) -> int | None:
        target = self.sessions.target(session, now)
        place = None if target is None else self.fleet.place_of(target)
        if place is None or not len(found := np.flatnonzero(places == place)):
            return None
        chosen = int(found[0])
        if not np.isfinite(costs[chosen]):
            return None
        near = costs[chosen] <= costs.min() * self.config.session_slack
        return chosen if near or self.config.affinity == "hard" else None

    def _book(
        self,
        booking_id: str,
        prompt: Prompt,
        place: int,
        now: float,
        held: int,
        pool: int,
        work: float,
    ) -> None:
        target = self.fleet.target(place)
        member = self.fleet.members[target.worker]
        size = self.fleet.block_size(member)
        hashes = prompt.hashes(size)
        once = self.config.cost.counts_blocks_once
        tail = size - 1 if self.config.cost.counts_tail else 0
        blocks = (prompt.tokens + tail) // size
        self.load.book(
            booking_id,
            target,
            place,
            now,
            prompt_tokens=prompt.tokens,
            hit_tokens=held,
            pool_tokens=pool,
            prefill_tokens=work,
            blocks=max(0, blocks - len(hashes)) if once else blocks,
            shared=tuple(hashes.tolist()) if once else (),
            cached_blocks=self.index.held(place, Tier.DEVICE),
            new_blocks=max(0, blocks - held // size),
        )
        if prompt.request.session:
            self.sessions.served(prompt.request.session, target, now)
        told = member.worker.publishes_events and member.events > 0
        generations = self._predictions if told else self._guesses
        for group in member.groups:
            self.index.store(place, generations.young, prompt.hashes(size, group))
        self._count_silence(member)

    def _count_silence(self, member: Member) -> None:
        if not member.worker.publishes_events or member.events:
            return
        member.silent_decisions += 1
        if member.silent_decisions >= self.config.silent_after:
            member.problems["silent"] = (
                f"worker {member.worker.id} got {member.silent_decisions} requests and published no"
                " KV event: are events enabled, and does the router subscribe to the right"
                " endpoint? Its cache is guessed until then"
            )

    def _scores(self, facts: Facts, costs: Column, places: Places) -> tuple[Score, ...]:
        columns = (
            facts.held_tokens,
            facts.device_tokens,
            facts.pool_tokens,
            facts.prefill_tokens,
            facts.decode_blocks,
            facts.requests,
        )
        counts = np.stack(columns).astype(np.int64).tolist()
        workers, ranks = self.fleet.names(places)
        return tuple(map(_score, zip(workers, ranks, costs.tolist(), *counts, strict=True)))

    def _make_room(self) -> None:
        self.load.make_room(self.fleet.places)
        self.learner.make_room(self.fleet.places)
