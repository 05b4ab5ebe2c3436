"""What every target has been given and not yet finished, booked at decision time.

A booking ends by `free` or by its lease: whatever is not reported ends by itself, so no target
stays marked as loaded for ever. No clock: `now` is an argument, in seconds of any one clock.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moonpool.core.errors import BadInput
from moonpool.router.base import Target

Column = npt.NDArray[np.float64]
_COLUMNS = ("prefill_tokens", "decode_blocks", "requests", "booked_tokens", "_promised")


@dataclass(slots=True)
class Booking:
    """One request on one target. States: prefilling -> decoding (first token) -> gone."""

    id: str
    target: Target
    place: int
    prompt_tokens: int
    hit_tokens: int
    pool_tokens: int
    booked_at: float
    deadline: float
    blocks: float
    """Blocks it holds besides those in `shared`."""
    shared: tuple[int, ...] = ()
    """Prefix hashes of its blocks, where blocks that several requests use are counted once."""
    prefilled: bool = False
    grown_at: float = -math.inf
    """When its answer was last told to have grown."""
    held_then: float = 0.0
    """Blocks that active requests of the target held at that moment."""
    prefill_tokens: float = 0.0
    """To be computed, as the cost model counts it."""

    @property
    def computed_tokens(self) -> int:
        """What the target really computes: neither in its cache nor brought from the pool."""
        return self.prompt_tokens - self.hit_tokens - self.pool_tokens


class LoadBook:
    """Bookings and their sums, one place of each column a target.

    `prefill_tokens` still to be computed, `decode_blocks` held by active requests, `requests`
    active, `booked_tokens` ever to be computed there (it never falls: ties go to the least).
    `bookings_max` bounds it: above, the booking nearest the end of its lease is ended.
    """

    def __init__(self, lease_s: float, bookings_max: int = 1 << 20) -> None:
        if lease_s <= 0 or bookings_max < 1:
            raise BadInput(
                f"lease_s = {lease_s} and bookings_max = {bookings_max} must be positive"
            )
        self._lease_s = lease_s
        self._bookings_max = bookings_max
        self._bookings: dict[str, Booking] = {}
        self._leases: list[tuple[float, str]] = []
        self._uses: dict[int, Counter[int]] = {}
        self.prefill_tokens: Column = np.zeros(0)
        self.decode_blocks: Column = np.zeros(0)
        self.requests: Column = np.zeros(0)
        self.booked_tokens: Column = np.zeros(0)
        self._promised: Column = np.zeros(0)  # blocks there were to be at the last booking
        self.expired = 0
        """Bookings that nobody ended."""

    def __len__(self) -> int:
        return len(self._bookings)

    def get(self, booking_id: str) -> Booking | None:
        return self._bookings.get(booking_id)

    def make_room(self, places: int) -> None:
        """Columns reach to place `places - 1`; what is there stays."""
        missing = places - len(self.requests)
        if missing > 0:
            for name in _COLUMNS:
                setattr(self, name, np.concatenate([getattr(self, name), np.zeros(missing)]))

    def book(
        self,
        booking_id: str,
        target: Target,
        place: int,
        now: float,
        *,
        prompt_tokens: int,
        hit_tokens: int,
        pool_tokens: int = 0,
        prefill_tokens: float | None = None,
        blocks: float = 0,
        shared: tuple[int, ...] = (),
        cached_blocks: float = 0,
        new_blocks: float = 0,
    ) -> Booking:
        """`prefill_tokens` None: what is neither in the target's cache nor brought from the pool.
        `cached_blocks`: in the target's cache by now; `new_blocks`: what this request adds there.

        Raises BadInput when the id is taken.
        """
        if prefill_tokens is None:
            prefill_tokens = prompt_tokens - hit_tokens - pool_tokens
        if booking_id in self._bookings:
            raise BadInput(f"booking {booking_id!r} exists; ids name one request each")
        if len(self._bookings) >= self._bookings_max:
            self._end_oldest()
        booking = Booking(
            booking_id,
            target,
            place,
            prompt_tokens,
            hit_tokens,
            pool_tokens,
            booked_at=now,
            deadline=now + self._lease_s,
            blocks=blocks,
            shared=shared,
            prefill_tokens=prefill_tokens,
        )
        self._bookings[booking_id] = booking
        heapq.heappush(self._leases, (booking.deadline, booking_id))
        under_way = self.prefill_tokens[place] > 0
        before = max(cached_blocks, float(self._promised[place])) if under_way else cached_blocks
        self._promised[place] = before + new_blocks
        self.prefill_tokens[place] += booking.prefill_tokens
        self.booked_tokens[place] += booking.prefill_tokens
        self.decode_blocks[place] += blocks + self._use(place, shared)
        self.requests[place] += 1
        return booking

    def taken_blocks(self, places: npt.NDArray[np.int64], cached_blocks: Column) -> Column:
        """`cached_blocks` of each place, with what prompts under way are still to add.

        Engines tell of blocks while they compute a prompt, so cached and booked ones overlap: it is
        what there was to be when the last prompt was booked. Exact where nothing is evicted.
        """
        under_way = self.prefill_tokens[places] > 0
        taken: Column = np.maximum(cached_blocks, np.where(under_way, self._promised[places], 0.0))
        return taken

    def new_blocks(self, place: int, hashes: Sequence[int]) -> int:
        """Of these blocks, those that no active request of the target uses."""
        uses = self._uses.get(place)
        return len(hashes) if not uses else sum(block not in uses for block in hashes)

    def first_token(self, booking_id: str, now: float) -> Booking | None:
        """The prompt is computed. None for an unknown booking and for a repeated report."""
        booking = self._renewed(booking_id, now)
        if booking is None or booking.prefilled:
            return None
        booking.prefilled = True
        _take(self.prefill_tokens, booking.place, booking.prefill_tokens)
        return booking

    def prefills_elsewhere(self, booking_id: str) -> None:
        """Another target computes the prompt: only the blocks of this booking count here."""
        booking = self._bookings.get(booking_id)
        if booking is not None and not booking.prefilled:
            booking.prefilled = True
            _take(self.prefill_tokens, booking.place, booking.prefill_tokens)
            _take(self.booked_tokens, booking.place, booking.prefill_tokens)

    def output_blocks(self, booking_id: str, now: float, count: float = 1) -> Booking | None:
        """The answer filled `count` blocks more. None: unknown booking."""
        booking = self._renewed(booking_id, now)
        if booking is not None:
            booking.blocks += count
            self.decode_blocks[booking.place] += count
        return booking

    def free(self, booking_id: str) -> Booking | None:
        """The request is over. None: unknown, or ended before."""
        booking = self._bookings.pop(booking_id, None)
        if booking is None:
            return None
        place = booking.place
        if not booking.prefilled:
            _take(self.prefill_tokens, place, booking.prefill_tokens)
        _take(self.decode_blocks, place, booking.blocks + self._disuse(place, booking.shared))
        _take(self.requests, place, 1)
        return booking

    def expire(self, now: float) -> list[Booking]:
        """End what is past its lease."""
        over = []
        while self._leases and self._leases[0][0] <= now:
            booking = self._pop_lease()
            if booking is not None and booking.deadline > now:
                heapq.heappush(self._leases, (booking.deadline, booking.id))
            elif booking is not None:
                self.free(booking.id)
                over.append(booking)
        self.expired += len(over)
        return over

    def drop(self, place: int) -> list[Booking]:
        """End all bookings of one target, which is gone; its place starts from nothing."""
        gone = [b for b in self._bookings.values() if b.place == place]
        for booking in gone:
            self.free(booking.id)
        for name in _COLUMNS:
            getattr(self, name)[place] = 0.0
        return gone

    def _renewed(self, booking_id: str, now: float) -> Booking | None:
        booking = self._bookings.get(booking_id)
        if booking is not None:
            booking.deadline = now + self._lease_s
        return booking

    def _pop_lease(self) -> Booking | None:
        """The booking of the earliest lease noted; None when it has ended."""
        return self._bookings.get(heapq.heappop(self._leases)[1])

    def _end_oldest(self) -> None:
        while (booking := self._pop_lease()) is None:
            pass
        self.free(booking.id)
        self.expired += 1

    def _use(self, place: int, hashes: tuple[int, ...]) -> int:
        """Count the blocks in; how many are new."""
        if not hashes:
            return 0
        uses = self._uses.setdefault(place, Counter())
        before = len(uses)
        uses.update(hashes)
        return len(uses) - before

    def _disuse(self, place: int, hashes: tuple[int, ...]) -> int:
        """Count the blocks out; how many nobody uses any more."""
        if not hashes:
            return 0
        uses = self._uses[place]
        before = len(uses)
        uses.subtract(hashes)
        for block in hashes:
            if not uses[block]:
                del uses[block]
        return before - len(uses)


def _take(column: Column, place: int, amount: float) -> None:
    """Sums of whole numbers are exact; only shares of blocks could leave a rest below zero."""
    column[place] = max(0.0, column[place] - amount)
