"""The catalog's row table in plain Python: the model that `moonpool._core.Table` is compared with.

Same methods, same dtypes, same row numbers (free rows are reused last freed first), same errors.
Dicts and lists instead of links and heaps; never used outside tests.
"""

from typing import Any

import numpy as np

from moonpool._core import TableFullError
from tests.pool.table_twin_rows import I32, U8, RowsTwin, column, rows_of, same_length

REPLICAS_PER_OBJECT_MAX = 255
# Answers of `commit_batch`, one per entry.
COMMIT_OK, COMMIT_STALE = 0, 1


class TableTwin(RowsTwin):
    """`Table(rows_max, replicas_max, lists_max)`: `_core.pyi` says what each call means."""

    # Replicas.

    def add_replicas(self, rows: Any, segments: Any, slots: Any, generations: Any) -> I32:
        values = self._live(rows)
        places = (
            column(segments, np.uint16, "segments"),
            column(slots, np.uint32, "slots"),
            column(generations, np.uint64, "generations"),
        )
        same_length(values, *places)
        if len(self._live_replicas) + len(values) > self.replicas_max:
            raise TableFullError(f"all {self.replicas_max} replica rows are taken")
        for row in set(values):
            if len(self._object_replicas[row]) + values.count(row) > REPLICAS_PER_OBJECT_MAX:
                raise ValueError(f"rows: {row} would have over {REPLICAS_PER_OBJECT_MAX} replicas")
        return rows_of(self._new_replica(*one) for one in zip(values, *places, strict=True))

    def _new_replica(self, row: int, segment: int, slot: int, generation: int) -> int:
        rep = self._free_replicas.pop() if self._free_replicas else self._replica_high
        self._replica_high = max(self._replica_high, rep + 1)
        self._live_replicas.add(rep)
        self._replica_object[rep], self._replica_segment[rep] = row, segment
        self.replica_slot[rep], self.replica_generation[rep] = slot, generation
        self.replica_state[rep] = 0
        self._object_replicas[row].append(rep)
        self._link_replicas(row)
        return rep

    def _link_replicas(self, row: int) -> None:
        reps = self._object_replicas[row]
        self._replica[row] = reps[0] if reps else -1
        for rep, after in zip(reps, [*reps[1:], -1], strict=False):
            self._replica_next[rep] = after

    def remove_replicas(self, replicas: Any) -> None:
        for rep in self._live_reps(replicas, unique=True):
            row = int(self._replica_object[rep])
            if self._replica_list[rep] >= 0:
                self._take(rep)
            self._object_replicas[row].remove(rep)
            self._link_replicas(row)
            self._replica_object[rep] = self._replica_next[rep] = -1
            self._live_replicas.remove(rep)
            self._free_replicas.append(rep)

    def replicas_of(self, rows: Any) -> tuple[U8, I32]:
        per_row = [self._object_replicas[row] for row in self._live(rows)]
        counts = np.array([len(reps) for reps in per_row], np.uint8)
        return counts, rows_of(rep for reps in per_row for rep in reps)

    # Recency lists.

    def _list(self, list_id: int) -> dict[int, None]:
        if not 0 <= list_id < self.lists_max:
            raise IndexError(f"list {list_id}: there are {self.lists_max}")
        return self._lists[list_id]

    def _take(self, rep: int) -> None:
        del self._lists[self._replica_list[rep]][rep]
        self._replica_list[rep] = -1

    def _put(self, list_id: int, rep: int) -> None:
        self._lists[list_id][rep] = None
        self._replica_list[rep] = list_id

    def _need_listed(self, reps: list[int], listed: bool) -> None:
        for rep in reps:
            if (self._replica_list[rep] >= 0) != listed:
                raise ValueError(f"replicas: {rep} is on {'no' if listed else 'a'} list")

    def list_push(self, list_id: int, replicas: Any) -> None:
        self._list(list_id)
        reps = self._live_reps(replicas, unique=True)
        self._need_listed(reps, False)
        for rep in reps:
            self._put(list_id, rep)

    def list_remove(self, replicas: Any) -> None:
        reps = self._live_reps(replicas, unique=True)
        self._need_listed(reps, True)
        for rep in reps:
            self._take(rep)

    def list_touch(self, replicas: Any) -> None:
        reps = self._live_reps(replicas)
        self._need_listed(reps, True)
        for rep in reps:
            self._touch(rep)

    def _touch(self, rep: int) -> None:
        list_id = int(self._replica_list[rep])
        self._take(rep)
        self._put(list_id, rep)

    def list_length(self, list_id: int) -> int:
        return len(self._list(list_id))

    def list_tail(self, list_id: int, n: int, skip: int = 0) -> I32:
        if n < 0 or skip < 0:
            raise ValueError("n and skip must be at least 0")
        return rows_of(list(self._list(list_id))[skip : skip + n])

    def list_iter(self, list_id: int) -> I32:
        return rows_of(self._list(list_id))

    # Whole steps of the catalog in one call.

    def _touch_rows(self, rows: list[int]) -> None:
        for row in rows:
            for rep in self._object_replicas[row]:
                if self._replica_list[rep] >= 0:
                    self._touch(rep)

    def touch_objects(self, rows: Any, seqs: Any) -> int:
        values, versions = column(rows, np.int32, "rows"), column(seqs, np.uint64, "seqs")
        same_length(values, versions)
        current = [
            row
            for row, seq in zip(values, versions, strict=True)
            if row in self._keys and int(self.seq[row]) == seq
        ]
        self._touch_rows(self._ancestors(current))
        return len(current)

    def reserve_batch(
        self,
        rows: Any,
        sizes: Any,
        *,
        state: int,
        tenant: int,
        term: int,
        first_seq: int,
        first_attempt: int,
        expiry_ms: int = 0,
        wanted: int = 1,
        pin: int = 0,
    ) -> None:
        values = self._live(rows)
        same_length(values, column(sizes, np.uint64, "sizes"))
        for i, row in enumerate(values):
            self.state[row], self.flags[row], self.crc[row] = state, 0, 0
            self.tenant[row], self.term[row], self.seq[row] = tenant, term, first_seq + i
            self.size[row], self.attempt[row] = sizes[i], first_attempt + i
            self.expiry_ms[row], self.wanted[row], self.pin[row] = expiry_ms, wanted, pin

    def commit_batch(
        self,
        rows: Any,
        attempts: Any,
        segments: Any,
        slots: Any,
        generations: Any,
        crcs: Any,
        *,
        state_from: int,
        state_to: int,
        touch_ancestors: bool = True,
    ) -> tuple[U8, I32]:
        values, tries = column(rows, np.int32, "rows"), column(attempts, np.uint64, "attempts")
        places = (
            column(segments, np.uint16, "segments"),
            column(slots, np.uint32, "slots"),
            column(generations, np.uint64, "generations"),
            column(crcs, np.uint32, "crcs"),
        )
        same_length(values, tries, *places)
        for segment in places[0]:
            self._list(segment)
        if len(self._live_replicas) + len(values) > self.replicas_max:
            raise TableFullError(f"all {self.replicas_max} replica rows are taken")
        status, reps = [], []
        done: dict[int, list[int]] = {}
        for row, attempt, segment, slot, generation, crc in zip(
            values, tries, *places, strict=True
        ):
            fits = row in self._keys and int(self.attempt[row]) == attempt
            full = fits and len(self._object_replicas[row]) >= REPLICAS_PER_OBJECT_MAX
            if not fits or full or not (row in done or self.state[row] == state_from):
                status.append(COMMIT_STALE)
                reps.append(-1)
                continue
            self.state[row], self.crc[row] = state_to, crc
            rep = self._new_replica(row, segment, slot, generation)
            done.setdefault(row, []).append(rep)
            status.append(COMMIT_OK)
            reps.append(rep)
        # The batch names parents before children; recency wants the last block first.
        for row in reversed(done):
            for rep in done[row]:
                self._put(int(self._replica_segment[rep]), rep)
        if touch_ancestors:
            self._touch_rows(self._ancestors(list(reversed(done))))
        return np.array(status, np.uint8), rows_of(reps)
