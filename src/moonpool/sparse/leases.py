"""A reader's hold on a prefix, renewed as it reads; and the clock and names all processes share."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

from moonpool.core.errors import BadInput

if TYPE_CHECKING:
    from moonpool.sparse.pool import SparsePool
    from moonpool.sparse.tables import Entry


class ReaderLease:
    """Lease `number` of `entry`, renewed when half of `lease_s` has passed."""

    def __init__(self, pool: SparsePool, entry: Entry, number: int, lease_s: float) -> None:
        self._pool = pool
        self._entry = entry
        self._number = number
        self._half_ns = int(lease_s * 5e8)
        self._renew_ns = clock_ns() + self._half_ns

    def keep(self) -> None:
        """Before a read. Raises PrefixGone when it had run out and the prefix is gone."""
        now_ns = clock_ns()
        if now_ns >= self._renew_ns:
            self._number = self._pool.renew_lease(self._number, self._entry)
            self._renew_ns = now_ns + self._half_ns

    def end(self) -> None:
        if not self._pool.closed:
            self._pool.end_lease(self._number, self._entry)


def clock_ns() -> int:
    """A clock that all processes of this host share."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def digest(key: str | bytes) -> bytes:
    """The 32 bytes that stand for a key in the segment."""
    if not isinstance(key, str | bytes) or not key:
        raise BadInput(f"a key is text or bytes, at least one, not {key!r}")
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()
