"""A sparse pool: prefixes in memory that processes of one host map, without a server.

All it knows stands in the segment itself; processes find each other by its path. Changes of the
tables are made under one lock of the file; rows are written and read without it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import numpy as np

from moonpool.core.errors import BadInput, BadSize, LayoutMismatch, PrefixGone
from moonpool.sparse.layout import U8, SparseLayout
from moonpool.sparse.leases import ReaderLease, clock_ns, digest
from moonpool.sparse.lock import PoolLock, WriterMark, WriterMarks
from moonpool.sparse.mapping import Mapping
from moonpool.sparse.opening import Place, as_paths, create_devices, geometry_of
from moonpool.sparse.reader import SparseReader
from moonpool.sparse.segment_format import INTERLEAVES, SEALED, Geometry
from moonpool.sparse.source import Guards, TableSource, Units
from moonpool.sparse.tables import Entry, Stores, Tables
from moonpool.sparse.writer import SparseWriter

LEASE_S: Final = 30.0
ENTRIES: Final = 256
LEASES: Final = 1024


class SparseStat(NamedTuple):
    """What a pool holds now."""

    pages: int
    free_pages: int
    writing: int
    sealed: int
    retired: int
    leases: int


class SparsePool:
    """One pool over one file a device. Made by `create` or `open`; a context manager. Thread-safe.

    Readers of a prefix hold a lease, renewed as they read: memory under a living lease is not
    given to others. A reader that stops reading for `lease_s` may lose its prefix, which it is
    told by PrefixGone; it never sees rows of somebody else.
    """

    def __init__(
        self, paths: Sequence[Path], *, writable: bool, lease_s: float, stores: Stores | None = None
    ) -> None:
        with ExitStack() as undo:
            self._geometry = geometry_of(paths)
            size = self._geometry.file_bytes
            self.paths = tuple(paths)
            self._devices: list[Mapping] = []
            for path in paths:
                self._devices.append(Mapping(path, size, writable=writable))
                undo.callback(self._devices[-1].close)
            # A reader writes its lease, and nothing else.
            self._table_map = Mapping(paths[0], self._geometry.index_offset, writable=True)
            undo.callback(self._table_map.close)
            self._lock = PoolLock(paths[0])
            undo.callback(self._lock.close)
            self._writers = WriterMarks(paths[0])
            undo.pop_all()
        self._tables = Tables(self._geometry, self._table_map.array, stores)
        self._writable = writable
        self._lease_s = lease_s
        self._closed = False

    @classmethod
    def create(
        cls,
        devices: Place | Sequence[Place],
        layout: SparseLayout,
        capacity_tokens: int,
        *,
        interleave: str = "page",
        entries: int = ENTRIES,
        leases: int = LEASES,
        hint_tokens: int = 0,
        lease_s: float = LEASE_S,
        stores: Stores | None = None,
    ) -> SparsePool:
        """A fresh pool for `capacity_tokens` tokens over files that do not exist yet (or dax
        devices, which are formatted). `interleave` spreads a prefix over the devices: page p of
        request r on device (r + p) mod D ("page"), r mod D ("request"), or the first with room
        ("none"). `hint_tokens`: room for a hint, in positions a layer.

        Raises BadInput, SegmentSpace.
        """
        paths = as_paths(devices)
        if interleave not in INTERLEAVES:
            raise BadInput(f"interleave is one of {', '.join(INTERLEAVES)}, not {interleave!r}")
        if capacity_tokens < 1 or entries < 1 or leases < 1 or hint_tokens < 0:
            raise BadInput("a pool has room for at least one token, one prefix and one lease")
        geometry = Geometry(
            layout,
            -(-layout.pages(capacity_tokens) // len(paths)),
            len(paths),
            0,
            interleave,
            entries,
            leases,
            hint_tokens,
            secrets.token_bytes(16),
            layout.model_id,
        )
        create_devices(paths, geometry)
        return cls(paths, writable=True, lease_s=lease_s, stores=stores)

    @classmethod
    def open(
        cls,
        devices: Place | Sequence[Place],
        layout: SparseLayout | None = None,
        *,
        writable: bool = True,
        lease_s: float = LEASE_S,
        stores: Stores | None = None,
    ) -> SparsePool:
        """The pool that stands there. With `layout` its rows must be of that shape and model.

        Raises SegmentDamaged for what is no whole sparse segment, or not all of one pool;
        LayoutMismatch for rows of another size or another model.
        """
        paths = as_paths(devices)
        pool = cls(paths, writable=writable, lease_s=lease_s, stores=stores)
        if layout is not None:
            wrong = layout.differences(pool._geometry.layout, pool._geometry.model_id)
            if wrong:
                pool.close()
                raise LayoutMismatch(f"the sparse pool at {paths[0]} has {wrong}")
        return pool

    @property
    def layout(self) -> SparseLayout:
        return self._geometry.layout

    @property
    def geometry(self) -> Geometry:
        return self._geometry

    def writer(self, key: str | bytes, max_tokens: int) -> SparseWriter:
        """Writes a prefix of at most `max_tokens` tokens under a key that no other has. Its pages
        are taken now, evicting prefixes that nobody reads, the one opened longest ago first.

        Raises BadInput for a key that is taken, PoolFull.
        """
        self._require_open()
        if not self._writable:
            raise BadInput("this pool was opened for reading; open it writable")
        if max_tokens < 1:
            raise BadInput(f"a prefix has at least one token, not {max_tokens}")
        now_ns = clock_ns()
        with self._lock.held(), self._tables.change():
            entry = self._tables.claim(digest(key), now_ns, self._writers.alive)
            mark = WriterMark(self.paths[0], entry.number)
            try:
                entry = self._tables.extend(
                    entry, self.layout.pages(max_tokens), now_ns, self._writers.alive
                )
            except BaseException:
                mark.close()
                self._tables.release(entry)
                raise
            pages = self._tables.pages_of(entry)
        return SparseWriter(self, entry, pages, mark)

    def reader(self, key: str | bytes) -> SparseReader:
        """A reader of what is published under `key` now. Raises PrefixGone when nothing is."""
        self._require_open()
        name = digest(key)
        now_ns = clock_ns()
        with self._lock.held(), self._tables.change():
            entry = self._tables.find(name)
            if entry is None or entry.state != SEALED:
                state = "unknown" if entry is None else "not published yet"
                raise PrefixGone(f"the prefix {key!r} is {state} in {self.paths[0]}")
            lease = ReaderLease(
                self, entry, self._tables.lease(entry, self._until(now_ns), now_ns), self._lease_s
            )
            pages = self._tables.pages_of(entry)[: self.layout.pages(entry.tokens)]
            words = self._tables.words[pages].copy()
            hint = self._hint(entry)
        return SparseReader(
            self._source(entry.tokens, pages, words),
            key=name,
            generation=entry.generation,
            hint=hint,
            keep=lease.keep,
            release=lease.end,
        )

    def exists(self, key: str | bytes) -> bool:
        """Whether something is published under `key`."""
        self._require_open()
        with self._lock.held():
            entry = self._tables.find(digest(key))
        return entry is not None and entry.state == SEALED

    def remove(self, key: str | bytes) -> bool:
        """Not found from here on. Readers that hold it keep it until their lease ends; its memory
        returns then. False: there was nothing under this key."""
        self._require_open()
        with self._lock.held(), self._tables.change():
            entry = self._tables.find(digest(key))
            if entry is None:
                return False
            if entry.state != SEALED or self._writers.alive(entry.number):
                raise BadInput(f"the prefix {key!r} is being written; close its writer first")
            self._tables.remove(entry, clock_ns())
        return True

    def reap(self) -> int:
        """Gives back the memory of removed prefixes whose readers are gone, and of writers that
        died. How many pages. A pool that is short of pages does this by itself."""
        self._require_open()
        with self._lock.held(), self._tables.change():
            return self._tables.reap(clock_ns(), self._writers.alive)

    def stat(self) -> SparseStat:
        self._require_open()
        with self._lock.held():
            states = np.bincount(self._tables.entries["state"].astype(np.int64), minlength=4)
            leases = int(np.count_nonzero(self._tables.leases["until_ns"] > clock_ns()))
            return SparseStat(
                self._geometry.pages_total,
                self._tables.free_pages,
                int(states[1]),
                int(states[2]),
                int(states[3]),
                leases,
            )

    def flush(self) -> None:
        """To the disk below, for pools on files; memory needs none."""
        for device in self._devices:
            device.flush()

    def close(self) -> None:
        """Unmaps; what is in the pool stays. Close readers and writers first."""
        if self._closed:
            return
        self._closed = True
        self._tables = Tables(self._geometry, np.zeros(self._geometry.index_offset, np.uint8))
        for device in self._devices:
            device.close()
        self._table_map.close()
        self._lock.close()
        self._writers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- for its writers --------------------------------------------------------------------------

    def page_rows(self, layer: int, page: int) -> U8:
        """Where the latent rows of a page lie, u8[page_bytes]."""
        geometry = self._geometry
        size = self.layout.page_bytes
        at = geometry.latent_offset + layer * geometry.layer_stride + page % geometry.pages * size
        return self._devices[page // geometry.pages].array[at : at + size]

    def page_index(self, layer: int, page: int) -> U8:
        """Where its index keys lie, u8[index_page_bytes]."""
        geometry = self._geometry
        size = self.layout.index_page_bytes
        stride = geometry.index_layer_stride
        at = geometry.index_offset + layer * stride + page % geometry.pages * size
        return self._devices[page // geometry.pages].array[at : at + size]

    def publish(self, entry: Entry, tokens: int, *, whole: bool, trim: bool = False) -> Entry:
        self._require_open()
        with self._lock.held(), self._tables.change():
            entry = self._tables.publish(entry, tokens, clock_ns(), whole=whole)
            return self._tables.trim(entry) if trim else entry

    def drop(self, entry: Entry) -> None:
        self._require_open()
        with self._lock.held(), self._tables.change():
            current = self._tables.entry(entry.number)
            if current.generation != entry.generation:
                return
            if current.tokens:
                self._tables.trim(current)
            else:
                self._tables.release(current)

    def write_hint(self, entry: Entry, hint: np.ndarray[Any, np.dtype[np.uint32]]) -> None:
        """`hint` u32[layers, n]; raises BadSize when there is no room for n."""
        layers, tokens = hint.shape
        room = self._geometry.hint_tokens
        if layers != self.layout.layers or tokens > room:
            raise BadSize(
                f"this pool keeps hints of {self.layout.layers} x {room}, not {hint.shape}"
            )
        self._require_open()
        with self._lock.held(), self._tables.change():
            self._hint_area(entry.number)[:, :tokens] = hint
            self._tables.set_hint(entry, tokens)

    # --- for its readers' leases ------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._closed

    def renew_lease(self, number: int, entry: Entry) -> int:
        """The lease's number from here on. Raises PrefixGone when it had run out and the prefix is
        gone."""
        self._require_open()
        now_ns = clock_ns()
        with self._lock.held(), self._tables.change():
            if self._tables.renew(number, entry, self._until(now_ns), now_ns):
                return number
            current = self._tables.entry(entry.number)
            if current.generation != entry.generation or current.state != SEALED:
                raise PrefixGone("the lease ran out and the prefix is gone; open it again")
            return self._tables.lease(entry, self._until(now_ns), now_ns)

    def end_lease(self, number: int, entry: Entry) -> None:
        with self._lock.held(), self._tables.change():
            self._tables.renew(number, entry, 0, clock_ns())

    # --- inside -----------------------------------------------------------------------------------

    def _source(self, tokens: int, pages: Any, words: Any) -> TableSource:
        geometry = self._geometry
        place = (pages % geometry.pages).astype(np.uint64)
        count = len(pages)
        units = Units(
            self.layout.page_tokens,
            [device.array for device in self._devices],
            (pages // geometry.pages).astype(np.uint32),
            np.uint64(geometry.latent_offset) + place * np.uint64(self.layout.page_bytes),
            np.full(count, geometry.layer_stride, np.uint64),
            np.uint64(geometry.index_offset) + place * np.uint64(self.layout.index_page_bytes),
            np.full(count, geometry.index_layer_stride, np.uint64),
        )
        offsets = np.uint64(geometry.words_offset) + np.uint64(8) * pages.astype(np.uint64)
        guards = Guards(self._table_map.array, offsets, words)
        return TableSource("shm", self.layout, tokens, units, guards)

    def _hint_area(self, number: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
        geometry = self._geometry
        nbytes = 4 * geometry.hint_tokens * self.layout.layers
        start = geometry.hints_offset + number * nbytes
        area = self._table_map.array[start : start + nbytes].view(np.uint32)
        return area.reshape(self.layout.layers, geometry.hint_tokens)

    def _hint(self, entry: Entry) -> list[np.ndarray[Any, np.dtype[np.uint32]]]:
        if not entry.hint_tokens:
            return []
        kept = self._hint_area(entry.number)[:, : entry.hint_tokens].copy()
        return [column[column < entry.tokens] for column in kept]

    def _until(self, now_ns: int) -> int:
        return now_ns + int(self._lease_s * 1e9)

    def _require_open(self) -> None:
        if self._closed:
            raise BadInput("this sparse pool is closed; open it again")
