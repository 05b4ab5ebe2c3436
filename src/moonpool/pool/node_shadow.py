"""What a node tells a master that stands by: all it holds, then what changes. No I/O."""

from __future__ import annotations

from typing import Any

import numpy as np

from moonpool.pool import messages as m
from moonpool.pool.agent import TableAgent
from moonpool.pool.catalog.distinct import distinct

CHUNK_SLOTS = 32_768
CHANGES_MAX = 8_192
SHADOW_S = 0.1  # a master that stands by is behind by so much


class Shadow:
    """NEW --Follow--> TELLING all --last chunk--> TELLING changes (a gap: all again)"""

    def __init__(self, agent: TableAgent) -> None:
        self._agent = agent
        self._segment = -1
        self._next_slot = -1
        self._told = 0
        self._said = False  # up to which change it was told, since it was told all
        self._due = 0.0

    @property
    def followed(self) -> bool:
        return self._segment >= 0

    @property
    def pending(self) -> bool:
        """There are pieces of the inventory to be told."""
        return self._next_slot >= 0

    def follow(self, order: m.Follow) -> None:
        self._segment = order.segment
        self._told = self._agent.sequence
        self._next_slot, self._said = 0, False

    def gone(self) -> m.Leaving | None:
        """The segment is given back: nothing lies there any more. None: it is not followed."""
        return m.Leaving(self._segment, self._agent.term, "gone") if self.followed else None

    def forget(self) -> None:
        """This master is obeyed now, or not connected any more."""
        self._segment = self._next_slot = -1

    def chunk(self) -> m.InventoryChunk:
        """The next piece; call while `pending`, with other work in between."""
        assert self._next_slot >= 0
        columns = self._agent.inventory(self._next_slot, CHUNK_SLOTS)
        following = int(columns["next_start"])
        last = following >= self._agent.slots
        self._next_slot = -1 if last else following
        return chunk_of(columns, self._segment, self._agent.term, last)

    def tick(self, now: float) -> list[m.NodeToMaster]:
        """What has changed since the last time, when that is due; after the inventory also that
        nothing has: it says up to which change the inventory is whole."""
        if not self.followed or self.pending or now < self._due:
            return []
        self._due = now + SHADOW_S
        told, messages = changes_after(self._agent, self._segment, self._told)
        if told is None:
            self._told = self._agent.sequence
            self._next_slot, self._said = 0, False
            nothing = self._agent.inventory_of(np.empty(0, np.uint32))
            empty = chunk_of(nothing, self._segment, self._agent.term, False)
            term = self._agent.term
            return [m.Changed(self._segment, term, self._told, b"", empty, False, gap=True)]
        if told == self._told and self._said:
            return []
        self._told, self._said = told, True
        return messages

    def next_deadline(self) -> float | None:
        return self._due if self.followed and not self.pending else None


def changes_after(
    agent: TableAgent, segment: int, sequence: int
) -> tuple[int | None, list[m.NodeToMaster]]:
    """All that changed after change `sequence`, and up to which; None: too long ago."""
    messages: list[m.NodeToMaster] = []
    while True:
        changes = agent.changes(sequence, CHANGES_MAX)
        if changes is None:
            return None, []
        numbers = changes["sequence"]
        last = len(numbers) < CHANGES_MAX
        if len(numbers):
            sequence = int(numbers[-1])
        slots = distinct(changes["slot"])
        sealed = chunk_of(agent.inventory_of(slots), segment, agent.term, False)
        messages.append(m.Changed(segment, agent.term, sequence, slots.tobytes(), sealed, last))
        if last:
            return sequence, messages


def chunk_of(columns: dict[str, object], segment: int, term: int, last: bool) -> m.InventoryChunk:
    """The agent's columns as they travel."""
    c: dict[str, np.ndarray[Any, Any]] = columns  # type: ignore[assignment]
    return m.InventoryChunk(
        segment,
        term,
        c["slot"].tobytes(),
        c["generation"].tobytes(),
        c["term"].tobytes(),
        c["seq"].tobytes(),
        c["size"].tobytes(),
        c["crc"].tobytes(),
        c["tenant"].tobytes(),
        c["expiry_ms"].tobytes(),
        c["last_used"].tobytes(),
        c["replicas"].tobytes(),
        c["pin"].tobytes(),
        m.KeyColumn(columns["keys"], c["key_ends"].tobytes()),  # type: ignore[arg-type]
        m.KeyColumn(columns["parents"], c["parent_ends"].tobytes()),  # type: ignore[arg-type]
        last,
    )
