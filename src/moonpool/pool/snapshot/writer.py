"""The catalog as the frames of a snapshot, in pieces of bounded work while it changes. Pure.

Why a snapshot that is never whole at any moment is right: of each segment it names a change number
up to which all that the agent reported was settled when its rows were begun. A slot that changed
later is told by the agent, and what is here of it does not count; one that did not change later
was settled, so it is here, or it was dropped meanwhile and the count of the agent's objects shows
that it still has it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from moonpool.pool.catalog.base import U32
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.catalog.segments import Segment
from moonpool.pool.catalog.standing import IN_TURN
from moonpool.pool.master_links import Links, LinkState, NodeLink
from moonpool.pool.messages import KeyColumn
from moonpool.pool.messages_node import InventoryChunk
from moonpool.pool.snapshot.format import MAGIC, End, Head, Part, frame_of

SLOTS_A_STEP = 8192


def frames(
    catalog: Catalog, links: Links, wall_ms: int, slots_a_step: int = SLOTS_A_STEP
) -> Iterator[bytes]:
    """The file piece by piece; between two pieces anything may happen to the catalog."""
    yield MAGIC
    yield frame_of(Head(catalog.term, wall_ms))
    count = 1
    for link in list(links):
        for frame in _part(catalog, link, slots_a_step):
            count += 1
            yield frame
    yield frame_of(End(count))


def settled_to(catalog: Catalog, link: NodeLink) -> int:
    """The latest change number of this agent up to which nothing it reported waits for a commit;
    -1: none is known. What was promised after a report was sealed after it."""
    if link.state is not LinkState.LIVE or link.progress is not None or link.ask_again:
        return -1
    attempt, copy = catalog.reservations.oldest, catalog.copying.oldest
    for heard in reversed(link.heard_changes):
        if (attempt is None or heard.next_attempt <= attempt) and (
            copy is None or heard.next_copy <= copy
        ):
            return heard.sequence
    return -1


def _part(catalog: Catalog, link: NodeLink, slots_a_step: int) -> Iterator[bytes]:
    segment = link.segment
    since = -1 if segment.below else settled_to(catalog, link)
    if since < 0:
        return
    yield frame_of(Part(segment.incarnation, segment.slots, since))
    ranks = _ranks(catalog, segment)
    for start in range(0, segment.slots, slots_a_step):
        rows = _rows(catalog, segment, range(start, start + slots_a_step), ranks)
        if rows is not None:
            yield frame_of(rows)


def _ranks(catalog: Catalog, segment: Segment) -> U32:
    """By slot: how recent what is in it is, from 1; 0 what is on no list."""
    table, numbers = catalog.table, catalog.config.segments_max
    lists = [table.list_iter(kind * numbers + segment.id) for kind in IN_TURN]
    replicas = np.concatenate(lists)
    ranks = np.zeros(segment.slots, np.uint32)
    ranks[table.replica_slot[replicas]] = np.arange(1, replicas.size + 1, dtype=np.uint32)
    return ranks


def _rows(catalog: Catalog, segment: Segment, which: range, ranks: U32) -> InventoryChunk | None:
    table = catalog.table
    here = segment.by_slot[which.start : which.stop]
    at = np.flatnonzero(here >= 0)
    if at.size == 0:
        return None
    slots = (at + which.start).astype(np.uint32)
    replicas = here[at]
    rows = table.replica_object[replicas]
    keys, ends = table.keys(rows)
    parents, parent_ends = table.parent_keys(rows)
    return InventoryChunk(
        segment.id,
        catalog.term,
        slots.tobytes(),
        table.replica_generation[replicas].tobytes(),
        table.term[rows].tobytes(),
        table.seq[rows].tobytes(),
        table.size[rows].tobytes(),
        table.crc[rows].tobytes(),
        table.tenant[rows].tobytes(),
        table.expiry_ms[rows].tobytes(),
        ranks[slots].tobytes(),
        table.wanted[rows].tobytes(),
        table.pin[rows].tobytes(),
        KeyColumn(keys, ends.tobytes()),
        KeyColumn(parents, parent_ends.tobytes()),
        last=False,
    )
