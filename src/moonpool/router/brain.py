"""The router's brain: facts in, decisions out. No clock, thread, socket or random number.

`now` is seconds of one monotonic clock, `draw` a random number of [0, 1) for a temperature above 0.
The service wraps it, the planner replays traces through it; it must never block or fail because a
worker does. Not safe for several threads at once.
"""

from __future__ import annotations

import itertools

import numpy as np

from moonpool.core.errors import BadInput, NoWorker, RequestTooLarge, WorkersBusy
from moonpool.router.base import Cleared, Decision, Event, RouteRequest, Score, Stored, Worker
from moonpool.router.choose import cheapest, drawn
from moonpool.router.config import BrainConfig
from moonpool.router.cost import Facts
from moonpool.router.fleet import Fleet, Member, Places
from moonpool.router.guesses import Generations
from moonpool.router.index import PrefixIndex
from moonpool.router.learner import Learner
from moonpool.router.load import Booking, Column, LoadBook
from moonpool.router.prompt import Prompt
from moonpool.router.sessions import Sessions

_GUESS_SLOTS = (3, 4)
_PREDICT_SLOTS = (5, 6)
_PREFILL = "/prefill"
"""What the booking on the prefill worker adds to the name of the request's own."""


class Brain:
    """Workers, their caches and loads, and where the next request goes.

    The life of a request: `decide` books it, `first_token` ends its prefill, `output_block` grows
    it, `free` ends it; whoever reports nothing loses the booking to its lease.
    """

    def __init__(self, config: BrainConfig | None = None) -> None:
        self.config = config or BrainConfig()
        self.fleet = Fleet()
        self.load = LoadBook(self.config.lease_s)
        self.index = PrefixIndex()
        self.learner = Learner(self.config.prefill_s, self.config.transfer_s)
        self.sessions = Sessions(self.config.session_ttl_s, self.config.sessions_max)
        self.predicted_tokens = 0
        """Hit tokens predicted for the requests that `free` reported a figure of."""
        self.actual_tokens = 0
        """And what their workers really had."""
        self._guesses = Generations(self.config.guess_ttl_s, _GUESS_SLOTS)
        self._predictions = Generations(self.config.predicted_ttl_s, _PREDICT_SLOTS)
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
        self._member(worker_id).busy_until = until

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
        """The answer grew by `count` blocks; also renews the lease. False: unknown."""
        return self.load.output_blocks(booking_id, now, count)

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
        """What a worker's cache did. Raises BadInput: unknown worker or rank."""
        member = self._member(worker_id)
        member.events += 1
        member.silent_decisions = 0
        member.problems.pop("silent", None)
        if isinstance(event, Cleared) and event.rank < 0:
            for place in member.places:
                self.index.drop(place)
            return
        place = self._rank_place(member, event.rank)
        if isinstance(event, Cleared):
            self.index.drop(place)
        elif isinstance(event, Stored):
            self.index.store(place, event.tier, event.hashes, event.parent)
        else:
            self.index.remove(place, event.tier, event.hashes)

    # Inside

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

    def _decide(self, prompt: Prompt, role: str, now: float, draw: float, booking: str) -> Decision:
        request = prompt.request
        places = self._fitting(prompt, self.fleet.eligible(request, role))
        facts = self._facts(prompt, places)
        costs = self._with_busy(self.config.cost.costs(facts), places, now)
        held = (facts.device_tokens + facts.host_tokens + facts.disk_tokens).astype(np.int64)
        salt = prompt.salt(int(facts.block_size[0]), int(held.max() // facts.block_size[0]))
        chosen, reason = self._choose(request, costs, places, now, draw, salt)
        place = int(places[chosen])
        target = self.fleet.target(place)
        if booking:
            pool = int(facts.pool_tokens[chosen])
            self._book(booking, prompt, place, now, int(held[chosen]), pool)
        return Decision(
            target.worker,
            target.rank,
            self._scores(facts, costs, places),
            int(held[chosen]),
            booking,
            reason,
            prompt.tokens,
        )

    def _facts(self, prompt: Prompt, places: Places) -> Facts:
        sizes = np.array([self.fleet.block_size(self.fleet.member_at(p)) for p in places.tolist()])
        columns = [np.zeros(len(places)) for _ in range(4)]
        for size in np.unique(sizes).tolist():
            of_size = np.flatnonzero(sizes == size)
            found = self.index.find(prompt.hashes(size), places[of_size])
            held = [prompt.covered(depth, size) for depth in found[:3]]
            pool = np.maximum(held[2], prompt.covered(np.array([found.pool]), size)[0])
            steps = (held[0], held[1] - held[0], held[2] - held[1], pool - held[2])
            for column, values in zip(columns, steps, strict=True):
                column[of_size] = values
        load, learnt = self.load, self.learner
        return Facts(
            prompt.tokens,
            prompt.request.output_tokens,
            prompt.request.priority,
            sizes.astype(np.float64),
            device_tokens=columns[0],
            host_tokens=columns[1],
            disk_tokens=columns[2],
            pool_tokens=columns[3],
            prefill_tokens=load.prefill_tokens[places],
            decode_blocks=load.decode_blocks[places],
            new_blocks=np.ceil(prompt.tokens / sizes),
            requests=load.requests[places],
            prefill_s=learnt.prefill_s[places],
            transfer_s=learnt.transfer_s[places],
            preferred=self._preferred(prompt.request, places),
        )

    def _preferred(self, request: RouteRequest, places: Places) -> Column:
        weights = np.zeros(len(places))
        for wanted, weight in request.preferred.items():
            label, _, value = wanted.partition("=")
            for i, place in enumerate(places.tolist()):
                if self.fleet.member_at(place).worker.labels.get(label) == value:
                    weights[i] += weight
        return weights

    def _fitting(self, prompt: Prompt, places: Places) -> Places:
        needed = prompt.tokens + max(1, prompt.request.output_tokens)
        limits = [self.fleet.member_at(p).worker.context_tokens_max for p in places.tolist()]
        kept = [i for i, limit in enumerate(limits) if not limit or limit >= needed]
        if not kept:
            raise RequestTooLarge(
                f"prompt of {prompt.tokens} tokens and an answer of"
                f" {max(1, prompt.request.output_tokens)} exceed the largest context here,"
                f" {max(limits)} tokens"
            )
        return places[kept]

    def _with_busy(self, costs: Column, places: Places, now: float) -> Column:
        limits, load = self.config, self.load
        busy = np.array([self.fleet.member_at(p).busy_until > now for p in places.tolist()])
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
        return np.where(busy, np.inf, costs)

    def _choose(
        self,
        request: RouteRequest,
        costs: Column,
        places: Places,
        now: float,
        draw: float,
        salt: int,
    ) -> tuple[int, str]:
        if len(places) == 1:
            return 0, "pin" if request.pin is not None else "only"
        temperature = (
            self.config.temperature if request.temperature is None else request.temperature
        )
        if request.session and self.config.affinity != "off":
            kept = self._session_choice(request.session, costs, places, now)
            if kept is not None:
                return kept, "session"
        if temperature > 0:
            return drawn(costs, temperature, draw), "cost"
        return cheapest(costs, self.load.booked_tokens[places], places, salt), "cost"

    def _session_choice(
        self, session: str, costs: Column, places: Places, now: float
    ) -> int | None:
        target = self.sessions.target(session, now)
        for i, place in enumerate(places.tolist() if target is not None else ()):
            if self.fleet.target(place) == target and np.isfinite(costs[i]):
                hard = self.config.affinity == "hard"
                return i if hard or costs[i] <= costs.min() * self.config.session_slack else None
        return None

    def _book(
        self, booking_id: str, prompt: Prompt, place: int, now: float, held: int, pool: int
    ) -> None:
        target = self.fleet.target(place)
        member = self.fleet.members[target.worker]
        size = self.fleet.block_size(member)
        hashes = prompt.hashes(size)
        self.load.book(
            booking_id,
            target,
            place,
            now,
            prompt_tokens=prompt.tokens,
            hit_tokens=held,
            pool_tokens=pool,
            blocks=-(-prompt.tokens // size),
        )
        if prompt.request.session:
            self.sessions.served(prompt.request.session, target, now)
        told = member.worker.publishes_events and member.events > 0
        generations = self._predictions if told else self._guesses
        self.index.store(place, generations.young, hashes)
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
        held = facts.device_tokens + facts.host_tokens + facts.disk_tokens
        columns = (held, facts.device_tokens, facts.pool_tokens, facts.prefill_tokens)
        counts = [
            c.astype(np.int64).tolist() for c in (*columns, facts.decode_blocks, facts.requests)
        ]
        targets = [self.fleet.target(place) for place in places.tolist()]
        return tuple(
            Score(target.worker, target.rank, cost, *numbers)
            for target, cost, *numbers in zip(targets, costs.tolist(), *counts, strict=True)
        )

    def _member(self, worker_id: str) -> Member:
        member = self.fleet.members.get(worker_id)
        if member is None:
            raise BadInput(f"worker {worker_id!r} is not registered")
        return member

    def _rank_place(self, member: Member, rank: int) -> int:
        if not 0 <= rank < len(member.places):
            raise BadInput(
                f"worker {member.worker.id!r} has {len(member.places)} ranks, none of number {rank}"
            )
        return member.places[rank]

    def _make_room(self) -> None:
        self.load.make_room(self.fleet.places)
        self.learner.make_room(self.fleet.places)
