"""Load or compute? By what both took lately. Pure."""

from __future__ import annotations

from typing import Final

_WEIGHT: Final = 0.25
"""Of the newest measurement; the rest is what was known before."""
EXPLORE_EVERY: Final = 16


class CostModel:
    """Seconds a byte from the pool against seconds a computed token, each as lately measured.

    What is unknown is tried. A load that would not be worth it is made all the same once in
    `EXPLORE_EVERY` times, or a slow moment would never be forgotten.
    """

    def __init__(self) -> None:
        self.load_s_per_byte: float | None = None
        self.compute_s_per_token: float | None = None
        self._refused = 0

    def loaded(self, size_bytes: int, seconds: float) -> None:
        """So many bytes came in so long, the waiting for them included."""
        self.load_s_per_byte = _mixed(self.load_s_per_byte, seconds / max(size_bytes, 1))

    def computed(self, tokens: int, seconds: float) -> None:
        """So many tokens of a prompt were computed in so long."""
        self.compute_s_per_token = _mixed(self.compute_s_per_token, seconds / max(tokens, 1))

    def worth_loading(self, tokens: int, size_bytes: int) -> bool:
        """Whether to load `size_bytes` instead of computing the `tokens` they stand for."""
        if self.load_s_per_byte is None or self.compute_s_per_token is None:
            return True
        if self.load_s_per_byte * size_bytes < self.compute_s_per_token * tokens:
            return True
        self._refused += 1
        return self._refused % EXPLORE_EVERY == 0

    def slower_than_compute(self, left_bytes: int, tokens: int) -> bool:
        """Whether `left_bytes` would arrive later than a pass over `tokens` needs them."""
        if self.load_s_per_byte is None or self.compute_s_per_token is None:
            return False
        return self.load_s_per_byte * left_bytes > self.compute_s_per_token * tokens


def _mixed(before: float | None, now: float) -> float:
    return now if before is None else (1 - _WEIGHT) * before + _WEIGHT * now
