"""Sparse prefixes as objects of a pool: its eviction, tenants, leases, replicas and events apply.

A reader on the same host holds views and reads rows in place; elsewhere it holds leases and the
node packs the rows asked for. `full` fetches everything first, by the same code: the baseline.
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from moonpool.core.errors import (
    BadInput,
    BadSize,
    Closed,
    LayoutMismatch,
    PoolFull,
    PrefixGone,
    did_you_mean,
)
from moonpool.pool.gathering import RowsWanted
from moonpool.pool.inputs import Key, as_key
from moonpool.pool.pool import Pool
from moonpool.pool.sessions import ReadSession, WriteSession
from moonpool.pool.view import View
from moonpool.sparse.layout import U8, U32, SparseLayout, as_bytes
from moonpool.sparse.policy import COSTS, Expected, advise
from moonpool.sparse.reader import SparseReader
from moonpool.sparse.source import RowSource, TableSource, Units
from moonpool.sparse.stored_format import (
    Manifest,
    as_hint,
    decode_manifest,
    encode_manifest,
    unit_keys,
    units_begin,
    whole_units,
)

UNIT_TOKENS: Final = 1024
TRANSPORTS: Final = ("auto", "shm", "tcp", "full")


class PrefixStore:
    """Prefixes of one layout in `pool`, in objects of `unit_tokens` tokens (whole pages)."""

    def __init__(self, pool: Pool, layout: SparseLayout, unit_tokens: int = UNIT_TOKENS) -> None:
        if unit_tokens < 1 or unit_tokens % layout.page_tokens:
            raise BadInput(f"{unit_tokens} tokens are no number of pages of {layout.page_tokens}")
        self.pool = pool
        self.layout = layout
        self.unit_tokens = unit_tokens

    def writer(self, key: Key, tokens: int, *, replicas: int = 1) -> StoredWriter:
        """Writes a prefix of exactly `tokens` tokens. A key names one content: whole units that
        are there already stay as they are, so a prefix that grew brings what is new.

        Raises PoolFull and what a put raises; BadInput for a key with a NUL byte.
        """
        if tokens < 1:
            raise BadInput(f"a prefix has at least one token, not {tokens}")
        manifest = Manifest(self.layout, tokens, self.unit_tokens)
        return StoredWriter(self.pool, as_key(key), manifest, replicas)

    def exists(self, key: Key) -> bool:
        return self.pool.exists(as_key(key))

    def remove(self, key: Key) -> None:
        """The prefix is not found any more; readers that hold views keep them."""
        name = as_key(key)
        units = units_begin(name)
        self.pool.remove(name)
        self.pool.remove_prefix(units)

    def reader(
        self, key: Key, transport: str = "auto", *, expected: Expected | None = None
    ) -> SparseReader:
        """`shm` reads in place through views (raises PoolFull beyond `pinned_bytes_max`), `tcp`
        lets the nodes pack rows, `full` copies the whole prefix first. `auto` takes views where
        all of it lies on this host, else `tcp`; told what is `expected` of the reader, it takes
        `full` where moving all rows once costs less than moving some again and again (policy.py).

        Raises PrefixGone for what is not there whole, LayoutMismatch for rows of another size or
        model.
        """
        if transport not in TRANSPORTS:
            raise BadInput(
                f"unknown transport {transport!r}; know {', '.join(TRANSPORTS)}."
                f"{did_you_mean(transport, TRANSPORTS)}"
            )
        name = as_key(key)
        data = self.pool.get(name)
        if data is None:
            raise PrefixGone(f"no prefix under {key!r}")
        manifest, hint = decode_manifest(data, repr(key))
        wrong = self.layout.differences(manifest.layout, manifest.layout.model_id)
        if wrong:
            raise LayoutMismatch(f"the prefix {key!r} has {wrong}")
        source: RowSource = self._source(name, manifest, transport)
        if transport == "auto" and expected is not None:
            if advise(self.layout, manifest.tokens, expected, COSTS[source.kind]).full:
                source.close()
                source = self._source(name, manifest, "full")
        return SparseReader(source, key=name, hint=hint)

    def _source(self, key: bytes, manifest: Manifest, transport: str) -> RowSource:
        keys = unit_keys(key, manifest)
        if transport in ("auto", "shm"):
            views = _views(self.pool, keys, must=transport == "shm")
            if views is not None:
                return ViewSource(manifest, views)
        if transport == "full":
            return fetch_whole(self.pool, keys, manifest)
        return SessionSource(self.pool, keys, manifest)


class StoredWriter:
    """One prefix on its way into the pool: visible as a whole after `seal`, else not at all."""

    def __init__(self, pool: Pool, key: bytes, manifest: Manifest, replicas: int) -> None:
        self._pool = pool
        self._key = key
        self._manifest = manifest
        self._replicas = replicas
        self._hint: U32 | None = None
        self._keys = unit_keys(key, manifest)
        sizes = [manifest.unit_bytes(unit) for unit in range(manifest.units)]
        self._session: WriteSession = pool.write_session(
            self._keys, sizes, replicas=replicas, parents="chain"
        )
        self._open = True
        for result in self._session.results:
            if result is not None and not result.ok:
                self.close()
                result.raise_for_status(key)
                raise PoolFull(f"the prefix {key!r} cannot be written now: {result.status}")

    def put(self, layer: int, start: int, rows: Any, index: Any = None) -> None:
        """As SparseWriter.put: rows of one layer from token `start` on, and the index keys of
        whole pages from a page's first token on."""
        manifest, layout = self._manifest, self._manifest.layout
        if not self._open:
            raise Closed("this writer has ended")
        if not 0 <= layer < layout.layers:
            raise BadInput(f"layers are 0 to {layout.layers - 1}, not {layer}")
        count, rest = divmod(memoryview(rows).nbytes, layout.entry_bytes)
        if rest:
            raise BadSize(f"rows of {layout.entry_bytes} bytes are wanted, whole ones")
        if start < 0 or start + count > manifest.tokens:
            raise BadInput(f"tokens {start}..{start + count} are outside {manifest.tokens}")
        flat = as_bytes(rows, count, layout.entry_bytes, "rows")
        self._spread(layer, start, count, flat, layout.entry_bytes, 1)
        if index is not None:
            if start % layout.page_tokens:
                raise BadInput(f"index keys are put from a page's first token on, not {start}")
            pages = layout.pages(count)
            keys = as_bytes(index, pages, layout.index_page_bytes, "pages of index keys")
            first = start // layout.page_tokens
            self._spread(layer, first, pages, keys, layout.index_page_bytes, layout.page_tokens)

    def set_hint(self, positions: Any) -> None:
        """Positions the last query chose, [layers, n], best first."""
        self._hint = as_hint(positions, self._manifest.layout.layers)

    def seal(self) -> None:
        """Commits. Raises what became of the first object that could not be stored."""
        if not self._open:
            raise Closed("this writer has ended")
        self._open = False
        for key, result in zip(self._keys, self._session.commit(), strict=True):
            result.raise_for_status(key)
        hint = self._hint
        manifest = Manifest(
            self._manifest.layout,
            self._manifest.tokens,
            self._manifest.unit_tokens,
            0 if hint is None else hint.shape[1],
        )
        self._pool.put(
            self._key,
            encode_manifest(manifest, hint),
            parent=self._keys[-1],
            replicas=self._replicas,
            replace=True,
        )

    def close(self) -> None:
        """Not sealed, it leaves nothing."""
        if self._open:
            self._open = False
            self._session.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _spread(
        self, layer: int, first: int, count: int, flat: U8, item_bytes: int, tokens_an_item: int
    ) -> None:
        """`count` items (rows, or pages of keys) from item `first` on, each to its unit."""
        manifest = self._manifest
        per_unit = manifest.unit_tokens // tokens_an_item
        done = 0
        while done < count:
            unit, inside = divmod(first + done, per_unit)
            here = min(count - done, per_unit - inside)
            offset = layer * manifest.layer_bytes(unit) + inside * item_bytes
            if tokens_an_item > 1:
                offset += manifest.latent_bytes(unit)
            piece = flat[done * item_bytes : (done + here) * item_bytes]
            if self._session.results[unit] is None:
                self._session.write_at(unit, offset, piece)
            done += here


class ViewSource(TableSource):
    """Rows where they lie, under views: they stay while this is open, removed or not."""

    def __init__(self, manifest: Manifest, views: list[View]) -> None:
        self._views = views
        super().__init__(
            "shm", manifest.layout, manifest.tokens, _units(manifest, [v.data for v in views]), None
        )

    def close(self) -> None:
        super().close()
        for view in self._views:
            with suppress(BufferError):  # a gather that raised still holds it; it ends with that
                view.close()


class SessionSource:
    """Rows that nodes pack, under leases that each read renews."""

    kind = "tcp"
    table = None

    def __init__(self, pool: Pool, keys: list[bytes], manifest: Manifest) -> None:
        self.layout = manifest.layout
        self.tokens = manifest.tokens
        self._manifest = manifest
        self._session: ReadSession = pool.read_session(keys)
        missing = [m for m in self._session.misses if m is not None]
        if missing:
            self.close()
            raise PrefixGone(f"{len(missing)} of {len(keys)} objects are gone: {missing[0].reason}")
        self._strides = manifest.column("layer_bytes")
        self._rows_at = np.zeros(manifest.units, np.uint64)
        self._index_at = manifest.column("latent_bytes")

    def gather(self, layers: U32, counts: U32, positions: U32, out: U8) -> None:
        layout = self.layout
        wanted = RowsWanted(
            layout.entry_bytes,
            self._manifest.unit_tokens,
            self._rows_at,
            self._strides,
            layers,
            counts,
            positions,
        )
        self._read(wanted, out)

    def copy_rows(self, layer: int, out: U8) -> None:
        everything = np.arange(self.tokens, dtype=np.uint32)
        self.gather(
            np.array([layer], np.uint32), np.array([self.tokens], np.uint32), everything, out
        )

    def copy_index(self, layer: int, out: U8) -> None:
        layout = self.layout
        if not layout.index_bytes:
            raise BadInput("this prefix has no index keys: its layout has index_bytes 0")
        pages = layout.pages(self.tokens)
        wanted = RowsWanted(
            layout.index_page_bytes,
            self._manifest.unit_tokens // layout.page_tokens,
            self._index_at,
            self._strides,
            np.array([layer], np.uint32),
            np.array([pages], np.uint32),
            np.arange(pages, dtype=np.uint32),
        )
        self._read(wanted, out)

    def close(self) -> None:
        self._session.close()

    def _read(self, wanted: RowsWanted, out: U8) -> None:
        if not self._session.read_rows(wanted, out):
            raise PrefixGone("an object of the prefix was evicted, removed or cannot be reached")


def fetch_whole(pool: Pool, keys: list[bytes], manifest: Manifest) -> TableSource:
    """The baseline: everything into local memory first, then the same reads. Raises PrefixGone."""
    memory = np.empty(sum(manifest.unit_bytes(u) for u in range(manifest.units)), np.uint8)
    units = whole_units(memory, manifest)
    answers = pool.get_many_into(keys, units)
    if not all(answer.ok for answer in answers):
        raise PrefixGone("an object of the prefix was evicted, removed or cannot be reached")
    return TableSource("full", manifest.layout, manifest.tokens, _units(manifest, units), None)


def _units(manifest: Manifest, buffers: list[Any]) -> Units:
    strides = manifest.column("layer_bytes")
    return Units(
        manifest.unit_tokens,
        buffers,
        np.arange(manifest.units, dtype=np.uint32),
        np.zeros(manifest.units, np.uint64),
        strides,
        manifest.column("latent_bytes"),
        strides,
    )


def _views(pool: Pool, keys: list[bytes], *, must: bool) -> list[View] | None:
    """A view on each object, all of them in place; None when that cannot be. With `must` that is
    an error."""
    views: list[View] = []
    try:
        for key in keys:
            view = pool.view(key)
            views.append(view)
            if view.data is None:
                raise PrefixGone(f"the object {key!r} is gone: {view.miss}")
            if not view.zero_copy:
                raise BadInput(f"the object {key!r} cannot be read in place; use 'tcp' or 'auto'")
        return views
    except (BadInput, PoolFull, PrefixGone) as error:
        for view in views:
            view.close()
        if must or isinstance(error, PrefixGone):
            raise
        return None
