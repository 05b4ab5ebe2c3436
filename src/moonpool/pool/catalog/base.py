"""The catalog's words and seams: row states and flags, limits, and the interfaces of its policies.

Nothing here decides. Array shapes: `n` keys of a batch, `k` replica rows.

    state       absent -> RESERVED -> COMMITTED -> GHOST or absent
    absent      no row
    RESERVED    promised to a writer, no value yet
    COMMITTED   a value; with IN_FLIGHT also promised to a writer who replaces it
    GHOST       no value, kept because children name it as their parent
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from moonpool.pool.messages import NO_SEGMENT as NO_SEGMENT

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Index = npt.NDArray[np.integer[Any]]  # places in a batch

RESERVED = 1
COMMITTED = 2
GHOST = 3

PINNED = 1  # hard pin: leaves only by remove or expiry
LEASED = 2  # somebody holds a lease on it
SHELTERED = 4  # parent, ancestor or member of the batch being admitted (during one decision)
ORPHAN = 8  # an ancestor was lost: never part of a prefix, first to go
IN_FLIGHT = 16  # a replacement is being written
CHOSEN = 32  # picked in the eviction decision being made
KEPT = PINNED | LEASED | SHELTERED | IN_FLIGHT  # eviction spares what has one of these

SOFT = 64  # a soft pin lasts

PIN_SOFT = 1
PIN_HARD = 2
PIN_KIND = 3  # its bits say the kind of pin; those above the priority: 0 normal, 1 low, 2 high
PRIORITY_SHIFT = 2
PIN_MAX = PIN_HARD | 2 << PRIORITY_SHIFT


@dataclass(frozen=True, slots=True)
class CatalogConfig:
    """Limits of the catalog; each bounds a table or a queue of that name."""

    rows_max: int = 4_000_000
    replica_rows_max: int = 0  # 0: one and a half times rows_max
    segments_max: int = 1024
    reservations_max: int = 1_000_000  # keys promised to writers at one time
    reservation_ms: int = 30_000
    inheritance_ms: int = 2_000  # how long a key is kept for the waiter that inherits it
    events_max: int = 65_536
    leases_max: int = 65_536
    lease_ms_max: int = 60_000
    eviction: str = "lru"
    placement: str = "local"
    failure_domain: str = ""  # label of nodes that names it; empty: the host
    slow_start_s: float = 0.0
    hot_reads_per_s: float = 0.0  # 0: no object is
    hot_hosts: int = 3
    cold_after_s: float = 60.0
    high_watermark: float = 1.0  # 1: off
    low_watermark: float = 1.0


class SegmentFacts(NamedTuple):
    """What placement knows of one segment that takes new objects."""

    segment: int
    node: str
    host_id: str
    capacity_bytes: int
    free_bytes: int
    free_slots: int
    domain: str  # failure domain: what fails together
    warmth: float = 1.0  # below 1: fresh, to be filled slowly


class Placement(Protocol):
    """Where the next object goes. Pure: facts and randomness are arguments."""

    def targets(
        self,
        facts: Sequence[SegmentFacts],
        size: int,
        replicas: int,
        host_id: str,
        prefer: int,
        draw: float,
        evicting: bool,
    ) -> list[int]:
        """At most `replicas` segments on distinct nodes, best first, for an object of `size` bytes.

        Without `evicting` only segments with room now; with it any whose capacity is enough.
        `draw` is uniform in [0, 1). Fewer than asked when there are fewer; [] when there is none.
        """
        ...


class Retirement(NamedTuple):
    """Slots that the agent of `segment` must retire; `hold_ms` longer when a lease is on them."""

    segment: int
    slots: U32
    generations: U64
    hold_ms: int = 0


class Expiry(NamedTuple):
    """Versions whose reservation ended: the agent of `segment` frees what it holds of them."""

    segment: int
    term: int
    sequences: U64
