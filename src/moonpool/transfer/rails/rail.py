"""One rail in the scheduler's books: what is in flight on it, and whether it may have more."""

import math
from typing import NamedTuple

from moonpool.transfer.rails.base import RailCost, RailLimits, RailState, RailView, Slice
from moonpool.transfer.rails.model import CostModel


class Flight(NamedTuple):
    """A slice on its way."""

    piece: Slice
    posted_s: float
    predicted_s: float


class Rail:
    """A rail serves its slices one after the other, so the oldest in flight is the one at work."""

    def __init__(self, peer: str, name: str, prior: RailCost, limits: RailLimits) -> None:
        self.peer = peer
        self.name = name
        self.state = RailState.UP
        self.model = CostModel(prior, limits.learn)
        self.flights: dict[int, Flight] = {}
        self.dropped: set[int] = set()
        self.retry_s = 0.0
        self.why = ""
        self._limits = limits
        self._backoff_s = limits.backoff_s
        self._free_s = -math.inf
        self._slices_done = 0
        self._bytes_done = 0
        self._demotions = 0

    @property
    def room(self) -> int:
        """Credits left."""
        most = self._limits.rail_slices_max if self.state is RailState.UP else 1
        return most - len(self.flights)

    def backlog_s(self, now_s: float) -> float:
        """When all that is in flight should be over, from now."""
        if not self.flights:
            return 0.0
        begun_s = now_s - self._begun_s()
        head = next(iter(self.flights.values())).predicted_s
        rest = sum(flight.predicted_s for flight in self.flights.values()) - head
        return max(0.0, head - begun_s) + rest

    def overdue_s(self) -> float:
        """The moment from which the slice at work is too late; inf when none is, or all of them
        were told to stop."""
        if not self.flights or len(self.dropped) == len(self.flights):
            return math.inf
        if self.model.samples == 0:
            return self._begun_s() + self._limits.unknown_s
        predicted_s = next(iter(self.flights.values())).predicted_s
        limits = self._limits
        patience_s = max(limits.overdue_factor * predicted_s, predicted_s + limits.overdue_min_s)
        return self._begun_s() + patience_s

    def post(self, ticket: int, piece: Slice, now_s: float) -> None:
        """`piece` is sent."""
        predicted_s = self.model.predict(piece.blocks, piece.nbytes)
        self.flights[ticket] = Flight(piece, now_s, predicted_s)

    def done(self, ticket: int, now_s: float) -> Slice:
        """The slice arrived: the rail is as good as any, and its model a sample richer."""
        flight = self.flights[ticket]
        # An attempt told to stop that arrived all the same says little of the rail's speed.
        if ticket not in self.dropped:
            begun_s = max(flight.posted_s, self._free_s)
            self.model.observe(flight.piece.blocks, flight.piece.nbytes, now_s - begun_s)
            if self.state is not RailState.DEMOTED and self.state is not RailState.DOWN:
                self.state, self.why = RailState.UP, ""
                self._backoff_s = self._limits.backoff_s
        self._slices_done += 1
        self._bytes_done += flight.piece.nbytes
        return self.lost(ticket, now_s)

    def lost(self, ticket: int, now_s: float) -> Slice:
        """The attempt is over without a word on the rail."""
        self.dropped.discard(ticket)
        self._free_s = now_s
        return self.flights.pop(ticket).piece

    def late(self, now_s: float) -> list[int]:
        """Demoted because its slice takes too long. It takes at least so long, and the model
        believes that: the next probe has more patience, or a rail that became slow stays out."""
        flight = next(iter(self.flights.values()))
        elapsed_s = now_s - self._begun_s()
        self.model.observe(flight.piece.blocks, flight.piece.nbytes, elapsed_s, wholly=True)
        return self.demote("slower than predicted", now_s)

    def demote(self, why: str, now_s: float) -> list[int]:
        """No slices for a while; the tickets whose attempts are to be stopped."""
        if self.state is not RailState.DEMOTED and self.state is not RailState.DOWN:
            self.state, self.why = RailState.DEMOTED, why
            self.retry_s = now_s + self._backoff_s
            self._backoff_s = min(2 * self._backoff_s, self._limits.backoff_max_s)
            self._demotions += 1
        return self._drop_all()

    def go_down(self, why: str, now_s: float) -> list[int]:
        """It is lost: no slices and no probes until come_back()."""
        drops = self.demote(why, now_s)
        self.state, self.why = RailState.DOWN, why
        return drops

    def come_back(self, now_s: float) -> None:
        """It is there again, and gets one slice to show it."""
        if self.state is RailState.DOWN:
            self.state, self.retry_s = RailState.DEMOTED, now_s

    def _drop_all(self) -> list[int]:
        drops = [ticket for ticket in self.flights if ticket not in self.dropped]
        self.dropped.update(drops)
        return drops

    def due_for_probe(self, now_s: float) -> bool:
        """It has rested, and nothing of before is on it."""
        return self.state is RailState.DEMOTED and now_s >= self.retry_s and not self.flights

    def view(self) -> RailView:
        """For people."""
        return RailView(
            self.peer,
            self.name,
            self.state,
            self.model.cost,
            self._slices_done,
            self._bytes_done,
            len(self.flights),
            self._demotions,
            self.why,
        )

    def _begun_s(self) -> float:
        return max(next(iter(self.flights.values())).posted_s, self._free_s)
