"""When the slots of guessed blocks change: a clock of generations, without a clock.

A guess lives between one and two times its time to live: it goes into the younger slot, and every
time to live the older slot is dropped and becomes the younger.
"""

from __future__ import annotations


class Generations:
    """Two slots in turn."""

    def __init__(self, ttl_s: float, slots: tuple[int, int]) -> None:
        self._ttl_s = ttl_s
        self._slots = slots
        self._turn_at: float | None = None

    @property
    def young(self) -> int:
        """The slot that guesses go into."""
        return self._slots[0]

    def turn(self, now: float) -> tuple[int, ...]:
        """Slots to drop now; usually none."""
        if self._turn_at is None:
            self._turn_at = now + self._ttl_s
        if now < self._turn_at:
            return ()
        late = now >= self._turn_at + self._ttl_s
        self._turn_at = now + self._ttl_s
        self._slots = (self._slots[1], self._slots[0])
        return self._slots if late else (self._slots[0],)
