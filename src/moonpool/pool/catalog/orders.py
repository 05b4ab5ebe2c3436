"""In which order a segment's objects go. The evictor decides how many, and what goes along."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

from moonpool._core import Table
from moonpool.pool.catalog.base import I32, U64
from moonpool.pool.catalog.needs import Need
from moonpool.pool.catalog.standing import IN_TURN

CANDIDATES = 64
CANDIDATES_MAX = 65_536


class EvictionOrder(Protocol):
    """Told of what comes, is used and leaves; offers candidates, first choice first."""

    touches_ancestors: bool  # whether a commit counts as a read of the ancestors
    keeps_books: bool  # whether it wants to be told of what comes and leaves
    # Whether what it offered is out of its books: a plan is then no mere look.
    binding: bool

    def candidates(self, need: Need) -> Generator[I32, None, None]:
        """Replica rows of the segment in batches; asked for one batch at a time, after what was
        chosen of the last one has its flag."""
        ...

    def touched(self, rows: I32, sequences: U64) -> int:
        """Reads of these versions; returns how many are current."""
        ...

    def spared(self, segment: int, replicas: I32) -> None:
        """Offered, but could not go (pinned, leased, in use): not to be offered first again."""
        ...

    def put_back(self, segment: int, replicas: I32) -> None:
        """Offered and chosen, but not needed after all."""
        ...

    def came(self, segment: int, replicas: I32) -> None:
        """Values of this segment, in the order in which they would go."""
        ...

    def left(self, segment: int, replicas: I32) -> None:
        """They left the segment, by its choice or not; their objects are still known."""
        ...

    def childless(self, rows: I32) -> None:
        """These have lost their last child."""
        ...

    def given_up(self, rows: I32) -> None:
        """Promised objects that got no value."""
        ...


class Lru:
    """Least recently used first, orphans before all; the order is the table's recency lists.

    Lists: number s holds segment s's replicas of the normal kind; others as `standing` says.
    A read of a child counts for its ancestors, so in one segment the first choice is a leaf.
    """

    touches_ancestors = True
    keeps_books = False
    binding = False

    def __init__(self, table: Table, segments_max: int) -> None:
        self._table = table
        self._segments_max = segments_max

    def candidates(self, need: Need) -> Generator[I32, None, None]:
        for kind in IN_TURN:
            number, skip, count = kind * self._segments_max + need.segment.id, 0, CANDIDATES
            while (batch := self._table.list_tail(number, count, skip)).size:
                yield batch
                skip += batch.size
                if need.only >= 0:  # those of one tenant may lie far apart
                    count = min(2 * count, CANDIDATES_MAX)

    def touched(self, rows: I32, sequences: U64) -> int:
        return self._table.touch_objects(rows, sequences)

    def spared(self, segment: int, replicas: I32) -> None:
        self._table.list_touch(replicas)

    def put_back(self, segment: int, replicas: I32) -> None:
        pass

    def came(self, segment: int, replicas: I32) -> None:
        pass

    def left(self, segment: int, replicas: I32) -> None:
        pass

    def childless(self, rows: I32) -> None:
        pass

    def given_up(self, rows: I32) -> None:
        pass
