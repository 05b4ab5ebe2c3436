"""Seconds that a block held by active requests adds to a step of its target, learnt from answers.

A step makes one token of each running answer, so an answer that grew by n tokens tells how long a
step took meanwhile. Fits  step = base + decode_block_s x blocks held there  by least squares that
forget. The configured value is a prior that is known to within itself: steps that vary for other
reasons, or a load that does not vary, leave it as it is.

Not counted: steps while a prompt was computed there, steps of the same time told by another answer,
and pauses. Steps far off what is expected count as if they were not so far (Huber), so that strays
weigh little and a worker that has become another is believed after some tens of them.
"""

from __future__ import annotations

import math

import numpy as np

from moonpool.router.load import Booking, Column

_KEEP = 0.998
"""Weight of all before, at each observation: some 500 count."""
_EARLY = 16
"""Observations before anything is learnt."""
_PAUSE_S = 1.0
"""A step is not that long; such an answer stood still."""
_RANGE = 100.0
"""Learnt values stay within this factor of the configured one."""
_NEAR = 4.0
"""An observation counts up to so many times the usual deviation."""
_DEVIATION_RATE = 1 / 16
_DEVIATION_LEAST = 0.01
"""Of the step: clocks, chunks of several tokens."""
_VARIANCE = math.pi / 2
"""Of a normal distribution, by its squared mean deviation."""


class StepLearner:
    """Column `decode_block_s`, one place a target."""

    def __init__(self, decode_block_s: float) -> None:
        self._start = decode_block_s
        self.decode_block_s: Column = np.zeros(0)
        self._lines: list[_Line] = []

    def make_room(self, places: int) -> None:
        while len(self._lines) < places:
            self._lines.append(_Line(self._start))
        missing = places - len(self.decode_block_s)
        if missing > 0:
            more = np.full(missing, self._start)
            self.decode_block_s = np.concatenate([self.decode_block_s, more])

    def forget(self, place: int) -> None:
        """Back to the configured value: another worker has the place now."""
        self._lines[place] = _Line(self._start)
        self.decode_block_s[place] = self._start

    def prompt_computed(self, place: int, now: float) -> None:
        """Steps that began before `now` were longer than answers alone make them."""
        self._lines[place].counted_to = max(self._lines[place].counted_to, now)

    def grown(self, booking: Booking, now: float, tokens: float, held: float, quiet: bool) -> None:
        """Its answer has `tokens` more than at its last call; the target holds `held` blocks.

        `quiet`: no prompt waits there or is computed.
        """
        since, booking.grown_at = booking.grown_at, now
        before, booking.held_then = booking.held_then, held
        line = self._lines[booking.place]
        if not quiet or since < line.counted_to or now <= since or tokens <= 0:
            return
        step = (now - since) / tokens
        if step < _PAUSE_S:
            line.counted_to = now
            line.see((before + held) / 2, step)
            self.decode_block_s[booking.place] = line.slope


class _Line:
    """Weighted means and sums of products about them (Welford), and the deviation from the line."""

    def __init__(self, start: float) -> None:
        self._start = self.slope = start
        self._fitted = start
        """What observations alone say: noise is told by it, lest a wrong prior pass for noise."""
        self.counted_to = -math.inf
        self._early: list[tuple[float, float]] = []
        self._weight = self._blocks = self._step = self._xx = self._xy = self._deviation = 0.0

    def see(self, blocks: float, step: float) -> None:
        if self._weight:
            self._count(blocks, step)
            return
        self._early.append((blocks, step))
        if len(self._early) < _EARLY:
            return
        # Begin from medians: with nothing expected yet, a stray could not be told.
        steps = np.array([step - self._start * blocks for blocks, step in self._early])
        middle = float(np.median(steps))
        self._deviation = float(np.median(np.abs(steps - middle)))
        self._blocks, self._step = np.median(np.array(self._early), axis=0).tolist()
        self._weight = 1.0
        for seen in self._early:
            self._count(*seen)
        self._early.clear()

    def _count(self, blocks: float, step: float) -> None:
        expected = max(0.0, self._step + self._fitted * (blocks - self._blocks))
        usual = max(self._deviation, _DEVIATION_LEAST * self._step)
        off = min(max(step - expected, -_NEAR * usual), _NEAR * usual)
        self._deviation = usual + _DEVIATION_RATE * (abs(off) - usual)
        step = expected + off
        self._weight = _KEEP * self._weight + 1.0
        from_mean = blocks - self._blocks
        self._blocks += from_mean / self._weight
        self._step += (step - self._step) / self._weight
        self._xx = _KEEP * self._xx + from_mean * (blocks - self._blocks)
        self._xy = _KEEP * self._xy + from_mean * (step - self._step)
        self._fit(usual)

    def _fit(self, usual: float) -> None:
        noise = _VARIANCE * usual * usual
        self.slope = self._slope(self._start, noise)
        self._fitted = self._slope(_RANGE * self._start, noise)

    def _slope(self, known_to: float, noise: float) -> float:
        """With the configured value as a normal prior of that deviation."""
        start, prior = self._start, known_to * known_to
        gain = prior / (self._xx * prior + noise)
        slope = start + gain * (self._xy - self._xx * start)
        return min(max(slope, start / _RANGE), start * _RANGE)
