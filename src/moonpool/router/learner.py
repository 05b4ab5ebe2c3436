"""Seconds a token, learnt for each target from the first tokens reported.

Prompts of one target are computed one after the other, so each took the time since the one before
(or since it came). Fits  time = prefill_s x uncached + transfer_s x tokens from the pool  by least
squares that forget, starting from the common coefficients as if they had been observed: the median
of the targets that have shown theirs, until then what is configured. So nobody seems the faster for
not having been asked. After the first prompt stalls are cut. What running answers add is learnt
apart, in step_learner.py.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from moonpool.router.load import Booking, Column
from moonpool.router.step_learner import StepLearner

_FORGET = 0.98
_PRIOR_TOKENS = 2048.0
_STALL = 4.0
"""A prompt counts as having taken at most so many times what was expected: others use the machine,
too, and one that stood still for seconds says little about the next."""
_RANGE = 1e3
"""Learnt values stay within this factor of the configured ones, whatever is reported."""


class Learner:
    """Columns `prefill_s`, `transfer_s` and `decode_block_s`, one place a target."""

    def __init__(self, prefill_s: float, transfer_s: float, decode_block_s: float) -> None:
        self._start = (prefill_s, transfer_s)
        self._steps = StepLearner(decode_block_s)
        self.prefill_s: Column = np.zeros(0)
        self.transfer_s: Column = np.zeros(0)
        self._shown: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)  # whose values are its own
        self._sums: list[list[float]] = []
        self._last: list[float] = []  # when the target's last first token came
        self._carried: list[
            tuple[float, float]
        ] = []  # work done in no time: of the next one's step

    @property
    def decode_block_s(self) -> Column:
        return self._steps.decode_block_s

    def make_room(self, places: int) -> None:
        self._steps.make_room(places)
        while len(self._sums) < places:
            self._sums.append([])
            self._last.append(-np.inf)
            self._carried.append((0.0, 0.0))
        missing = places - len(self.prefill_s)
        if missing > 0:
            first, second = self._common()
            self.prefill_s = np.concatenate([self.prefill_s, np.full(missing, first)])
            self.transfer_s = np.concatenate([self.transfer_s, np.full(missing, second)])
            self._shown = np.concatenate([self._shown, np.zeros(missing, np.bool_)])

    def forget(self, place: int) -> None:
        """Back to the common values: another worker has the place now."""
        self._steps.forget(place)
        self._sums[place] = []
        self._last[place] = -np.inf
        self._carried[place] = (0.0, 0.0)
        self._shown[place] = False
        self.prefill_s[place], self.transfer_s[place] = self._common()

    def _common(self) -> tuple[float, float]:
        if not self._shown.any():
            return self._start
        shown = self._shown
        return middle(np.sort(self.prefill_s[shown])), middle(np.sort(self.transfer_s[shown]))

    def first_token(self, booking: Booking, now: float) -> None:
        """One observation. Prompts that come out of one engine step together count together."""
        place = booking.place
        if booking.computed_tokens > 0:
            self._steps.prompt_computed(place, now)
        seconds = now - max(booking.booked_at, self._last[place])
        computed = self._carried[place][0] + booking.computed_tokens
        brought = self._carried[place][1] + booking.pool_tokens
        if computed + brought <= 0:
            return
        if seconds <= 0:
            self._carried[place] = (computed, brought)
            return
        self._carried[place] = (0.0, 0.0)
        self._last[place] = now
        prefill_s, transfer_s = float(self.prefill_s[place]), float(self.transfer_s[place])
        sums = self._sums[place]
        if sums:
            expected = computed * prefill_s + brought * transfer_s
            seconds = min(seconds, _STALL * expected)
        else:
            weight = _PRIOR_TOKENS**2
            sums = [weight, 0.0, weight, weight * prefill_s, weight * transfer_s]
        seen = (
            computed * computed,
            computed * brought,
            brought * brought,
            computed * seconds,
            brought * seconds,
        )
        sums = [_FORGET * old + new for old, new in zip(sums, seen, strict=True)]
        self._sums[place] = sums
        xx, xy, yy, xt, yt = sums
        det = xx * yy - xy * xy
        if det > 1e-9 * xx * yy:
            configured = self._start
            self.prefill_s[place] = _within((xt * yy - yt * xy) / det, configured[0])
            self.transfer_s[place] = _within((yt * xx - xt * xy) / det, configured[1])
            self._shown[place] = True
            if not self._shown.all():
                common = self._common()
                self.prefill_s[~self._shown], self.transfer_s[~self._shown] = common

    def grown(self, booking: Booking, now: float, tokens: float, held: float, quiet: bool) -> None:
        """As StepLearner's."""
        self._steps.grown(booking, now, tokens, held, quiet)


def middle(in_order: Column) -> float:
    """The median of rates, at least one; of two in the middle what is as many times of the one as
    the other is of it."""
    count = len(in_order)
    return math.sqrt(float(in_order[(count - 1) // 2]) * float(in_order[count // 2]))


def _within(value: float, start: float) -> float:
    return min(max(value, start / _RANGE), start * _RANGE)
