"""How firmly objects stand: priorities and soft pins, as lists from which eviction takes in turn.

    orphans  ->  low  ->  normal  ->  high  ->  softly pinned          (hard pins are never offered)

An object stands at least as firmly as any below it, so a parent never goes for being of less worth
than its child. A soft pin ends with its time; then the object stands by its priority again.
Priority and kind of pin are in the slot and outlive the master; how long a pin still lasts is not.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from moonpool._core import Table
from moonpool.pool.catalog.base import (
    COMMITTED,
    I32,
    ORPHAN,
    PIN_HARD,
    PIN_KIND,
    PIN_SOFT,
    PINNED,
    PRIORITY_SHIFT,
    SOFT,
    U64,
    Bool,
    Index,
)
from moonpool.pool.catalog.distinct import distinct
from moonpool.pool.catalog.reservations import Batch

NORMAL, ORPHANS, LOW, HIGH, PINS = range(5)  # numbers of lists, in units of segments_max
LISTS_PER_SEGMENT = 5
IN_TURN = (ORPHANS, LOW, NORMAL, HIGH, PINS)
_BY_PRIORITY = np.array([NORMAL, LOW, HIGH], np.int64)
_TURN_OF_LIST = np.argsort(IN_TURN)
_RANK_OF_CODE = np.array([1, 0, 2], np.int64)
RANK_MAX = 3
ENDS_SPARE = 64
_LOW_CODE = 1
SOFT_TTL_MS = 1_800_000  # of a soft pin that names none, or whose end nobody knows any more


@dataclass(slots=True)
class _Pin:
    sequence: int
    until: float
    ttl_s: float
    refresh: bool


class Standing:
    """Knows the soft pins; at most one for each object that asked for it, and its ancestors."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._pins: dict[int, _Pin] = {}
        self._ends: list[tuple[float, int]] = []
        self.used = False  # some object stands otherwise than normal
        self.low = False  # some object has low priority

    def __len__(self) -> int:
        return len(self._pins)

    def list_of(self, rows: I32) -> Index:
        """The list of each row's replicas, in units of segments_max."""
        flags = self._table.flags[rows]
        lists = _BY_PRIORITY[np.minimum(self._table.pin[rows] >> PRIORITY_SHIFT, 2)]
        lists = np.where((flags & SOFT) != 0, PINS, lists)
        return np.where((flags & ORPHAN) != 0, ORPHANS, lists)

    def turns(self, rows: I32) -> Index:
        """Where each row's list comes in IN_TURN."""
        turns: Index = _TURN_OF_LIST[self.list_of(rows)]
        return turns

    def rank(self, row: int) -> int:
        """0 goes first, 3 last."""
        if self._table.flags[row] & SOFT:
            return 3
        return int(_RANK_OF_CODE[min(int(self._table.pin[row]) >> PRIORITY_SHIFT, 2)])

    def committed(self, rows: I32, batch: Batch, now: float) -> I32:
        """Values of this batch are visible; the rows whose list may be another one now."""
        kind, code = batch.pin & PIN_KIND, batch.pin >> PRIORITY_SHIFT
        if kind == PIN_HARD:
            self._table.flags[rows] |= PINNED
        if not (code or kind == PIN_SOFT or self.low):
            return rows[:0]
        family = self._stand(rows, code)
        if kind == PIN_SOFT and family.size:
            self.used = True
            ttl_s = (batch.pin_ttl_ms or SOFT_TTL_MS) / 1000
            self._pin(family, now + ttl_s, ttl_s, rows if batch.pin_refresh else rows[:0])
        return family

    def reported(self, rows: I32, now: float) -> I32:
        """These came with an inventory; the rows whose list may be another one than the normal."""
        pins = self._table.pin[rows]
        if not (self.low or (pins & (0xFF ^ PIN_HARD)).any()):
            return rows[:0]
        codes = pins >> PRIORITY_SHIFT
        moved = [self._stand(rows[codes == code], int(code)) for code in np.unique(codes)]
        soft = rows[(pins & PIN_KIND) == PIN_SOFT]
        if soft.size:
            self.used = True
            family = self._family(soft)
            self._pin(family, now + SOFT_TTL_MS / 1000, SOFT_TTL_MS / 1000, soft[:0])
            moved.append(family)
        changed: I32 = distinct(np.concatenate(moved))
        return changed

    def _stand(self, rows: I32, code: int) -> I32:
        """Rows of one priority, and what they raise above them."""
        table = self._table
        self.used |= code != 0
        self.low |= code == _LOW_CODE
        family = self._family(rows)
        pins = table.pin[family]
        lower = _RANK_OF_CODE[np.minimum(pins >> PRIORITY_SHIFT, 2)] < _RANK_OF_CODE[code]
        table.pin[family[lower]] = (pins[lower] & PIN_KIND) | (code << PRIORITY_SHIFT)
        return family

    def _family(self, rows: I32) -> I32:
        """Committed ones of these rows and all above them."""
        family = self._table.ancestors_order(rows)
        committed: I32 = family[self._table.state[family] == COMMITTED]
        return committed

    def _pin(self, rows: I32, until: float, ttl_s: float, refresh: I32) -> None:
        asked = set(refresh.tolist())
        for row, sequence in zip(rows.tolist(), self._table.seq[rows].tolist(), strict=True):
            pin = self._pins.get(row)
            if pin is None or pin.sequence != sequence:
                pin = self._pins[row] = _Pin(sequence, 0.0, ttl_s, False)
            if row in asked:
                pin.refresh, pin.ttl_s = True, ttl_s
            if until > pin.until:
                pin.until = until
                heapq.heappush(self._ends, (until, row))
        self._table.flags[rows] |= SOFT
        if len(self._ends) > 2 * len(self._pins) + ENDS_SPARE:  # each renewal left one behind
            self._ends = [(pin.until, row) for row, pin in self._pins.items()]
            heapq.heapify(self._ends)

    def read(self, rows: I32, sequences: U64, now: float) -> None:
        """Reads of these versions: pins that asked for it begin anew, with those above them."""
        if not self._pins:
            return
        again: dict[float, list[int]] = {}
        for row, sequence in zip(rows.tolist(), sequences.tolist(), strict=True):
            pin = self._pins.get(row)
            if pin is not None and pin.refresh and pin.sequence == sequence and pin.until > now:
                again.setdefault(pin.ttl_s, []).append(row)
        for ttl_s, some in again.items():
            mine = np.array(some, np.int32)
            mine = mine[self._current(mine)]
            family = self._family(mine)
            self._pin(family, now + ttl_s, ttl_s, mine)

    def _current(self, rows: I32) -> Bool:
        sequences = np.array([self._pins[row].sequence for row in rows.tolist()], np.uint64)
        current: Bool = self._table.state[rows] == COMMITTED
        current &= self._table.seq[rows] == sequences
        return current

    def expire(self, now: float) -> I32:
        """Pins whose time is over; their rows go back to the list of their priority."""
        over = []
        while self._ends and self._ends[0][0] <= now:
            _, row = heapq.heappop(self._ends)
            pin = self._pins.get(row)
            if pin is not None and pin.until <= now:
                over.append(row)
        rows = distinct(np.array(over, np.int32))
        current = rows[self._current(rows)]
        for row in rows.tolist():
            del self._pins[row]
        self._table.flags[current] &= 0xFF ^ SOFT
        return current

    @property
    def next_deadline(self) -> float | None:
        return self._ends[0][0] if self._ends else None
