"""What the router counts. Plain numbers; no library, no locks."""

from __future__ import annotations

from collections import Counter
from typing import Final

from moonpool.core.exposition import Histogram

_SHARES: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Counters:
    """One router's figures since its start."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        """By worker and by how it ended: ok, error, client_gone, cut, timeout."""
        self.refusals: Counter[str] = Counter()
        """Requests never sent to a worker, by status."""
        self.retries: Counter[str] = Counter()
        """Attempts made again, by why."""
        self.prefill_failures = 0
        self.hits_checked = 0
        """Requests whose worker told its hit tokens."""
        self.hits_predicted_tokens = 0
        self.hits_actual_tokens = 0
        self.hits_error_tokens = 0
        """Sum of |predicted - actual|: errors do not cancel out in it."""
        self.decision_s = Histogram()
        self.first_token_s = Histogram()
        self.hit_share = Histogram(_SHARES)
