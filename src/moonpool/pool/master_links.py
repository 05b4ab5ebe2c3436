"""The master's links to its segments: who serves them, and how far each is.

JoinSegment -> ADOPTING --Adopted--> REPORTING --last InventoryChunk--> LIVE
JoinSegment -> FOLLOWED, while this master stands by; then ADOPTING when it takes the lead
connection lost or not heard for a lease -> AWAY -> (JoinSegment again, or heard again)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import msgspec

from moonpool.pool import messages as m
from moonpool.pool.catalog.base import Expiry
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.catalog.inventory import Progress
from moonpool.pool.catalog.segments import Segment
from moonpool.pool.snapshot.saved import Restore

MISSED_MAX = 4096  # expiries kept for a node that is away
HEARD_MAX = 128  # reports remembered: at two a second more than a put may take


class LinkState(Enum):
    FOLLOWED = "followed"
    ADOPTING = "adopting"
    REPORTING = "reporting"
    LIVE = "live"
    AWAY = "away"


class Heard(NamedTuple):
    """All changes up to `sequence` were told before these numbers were given out."""

    sequence: int
    next_attempt: int
    next_copy: int


@dataclass(slots=True)
class NodeLink:
    """One segment's connection and lease."""

    segment: Segment
    endpoint: m.SegmentEndpoint
    session: int | None
    state: LinkState
    lease_until: float
    progress: Progress | None = None
    ask_again: bool = False  # a gap was reported while an inventory was on its way
    lost: bool = False  # node_lost was said
    away_since: float = 0.0
    reported_at: float = 0.0  # when the last heartbeat came
    usage: dict[str, int] | None = None
    followed_to: int = -1  # change number that a master standing by has heard of
    missed: deque[Expiry] = field(default_factory=lambda: deque(maxlen=MISSED_MAX))
    heard_changes: deque[Heard] = field(default_factory=lambda: deque(maxlen=HEARD_MAX))
    restore: Restore | None = None  # it is taken in from a snapshot

    @property
    def heard(self) -> bool:
        return self.session is not None and not self.lost

    @property
    def obeys(self) -> bool:
        """Its agent takes orders under this term."""
        unready = (LinkState.ADOPTING, LinkState.FOLLOWED)
        return self.session is not None and self.state not in unready


class Links:
    """All links by segment id, and the number that clients know this topology by."""

    def __init__(self, catalog: Catalog, instance: bytes) -> None:
        self._catalog = catalog
        self._links: dict[int, NodeLink] = {}
        # Segment ids mean something under one master only; so must this number.
        self.topology_version = (int.from_bytes(instance[:4], "little") << 20) + 1

    def __iter__(self) -> Iterator[NodeLink]:
        """Those that are gone for good only answer to their number."""
        return (link for link in self._links.values() if not link.segment.gone)

    def __getitem__(self, segment: int) -> NodeLink:
        return self._links[segment]

    def get(self, segment: int) -> NodeLink | None:
        return self._links.get(segment)

    def add(self, link: NodeLink) -> None:
        self._links[link.segment.id] = link

    def changed(self) -> None:
        """Clients are to ask for the topology again."""
        self.topology_version += 1

    def spoken_for(self, session: int, segment: int, term: int) -> NodeLink | None:
        """The link a node speaks for; None when it is not this session's or of an older term."""
        link = self._links.get(segment)
        if link is None or link.session != session or term != self._catalog.term:
            return None
        return link

    def followed(self, session: int, segment: int) -> NodeLink | None:
        """The link a node speaks for to a master that stands by."""
        link = self._links.get(segment)
        if link is None or link.session != session or link.state is not LinkState.FOLLOWED:
            return None
        return link

    def endpoints(self) -> list[m.SegmentEndpoint]:
        return [
            msgspec.structs.replace(
                link.endpoint, segment=link.segment.id, alive=link.segment.alive
            )
            for link in self
        ]

    def names(self, segments: set[int]) -> list[str]:
        return sorted({self._links[segment].endpoint.node for segment in segments})

    @property
    def reporting(self) -> bool:
        """Some segment's first inventory is on its way."""
        return any(link.session is not None and not link.segment.known for link in self)

    @property
    def reported(self) -> int:
        """Nodes whose inventory was read."""
        return len({link.endpoint.node for link in self if link.segment.known})

    @property
    def reported_names(self) -> set[str]:
        return {link.endpoint.node for link in self if link.segment.known}

    def obeying(self) -> int:
        """How many obey at present."""
        return sum(link.obeys for link in self)

    def remembered_without(self, lost: NodeLink, obeying: int) -> bool:
        """Some living node, of `obeying`, keeps the tombstones of what this one missed: should the
        master be replaced, too, nothing removed comes back with it."""
        return obeying > lost.obeys
