"""Writing a prefix: rows anywhere in its pages, published up to a length, sealed at the end.

rows written     nobody reads them
commit(n)        whole pages below n are immutable and readable, the last one stays ours
seal(n)          everything below n is; the rest of the memory goes back
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from moonpool.core.errors import BadInput, BadSize, Closed
from moonpool.sparse.layout import U32, as_bytes
from moonpool.sparse.stored_format import as_hint

if TYPE_CHECKING:
    from moonpool.sparse.lock import WriterMark
    from moonpool.sparse.pool import SparsePool
    from moonpool.sparse.tables import Entry


class SparseWriter:
    """One prefix's only writer. Not sealed when it closes, it leaves what was committed. For one
    thread at a time; a context manager."""

    def __init__(self, pool: SparsePool, entry: Entry, pages: U32, mark: WriterMark) -> None:
        self._pool = pool
        self._entry = entry
        self._pages = pages.tolist()
        self._mark = mark
        self._committed = 0
        self._open = True

    @property
    def capacity(self) -> int:
        """Tokens there is room for."""
        return len(self._pages) * self._pool.layout.page_tokens

    @property
    def committed(self) -> int:
        """Tokens that readers see."""
        return self._committed

    def put(self, layer: int, start: int, rows: Any, index: Any = None) -> None:
        """Latent rows of tokens start, start+1, ... of one layer (n rows of entry_bytes), and
        their index keys: whole pages of index_page_bytes, from a page's first token on.

        Raises BadInput, BadSize: a row that is sealed already, outside the room, or of another
        size.
        """
        layout = self._pool.layout
        self._require_open()
        if not 0 <= layer < layout.layers:
            raise BadInput(f"layers are 0 to {layout.layers - 1}, not {layer}")
        nbytes = memoryview(rows).nbytes
        count, rest = divmod(nbytes, layout.entry_bytes)
        if rest:
            raise BadSize(f"{nbytes} bytes are no number of rows of {layout.entry_bytes} bytes")
        self._check_room(start, count)
        self._write_rows(layer, start, as_bytes(rows, count, layout.entry_bytes, "rows"))
        if index is not None:
            self._write_index(layer, start, count, index)

    def commit(self, tokens: int) -> int:
        """Tokens below `tokens` were written in all layers: their whole pages become readable.
        Returns how many tokens readers see now."""
        self._require_open()
        self._check_length(tokens)
        self._entry = self._pool.publish(self._entry, tokens, whole=False)
        self._committed = self._entry.tokens
        return self._committed

    def set_hint(self, positions: Any) -> None:
        """Positions the last query chose, u32[layers, n], best first: what a decoder that starts
        cold may fetch before its first query."""
        self._require_open()
        self._pool.write_hint(self._entry, as_hint(positions, self._pool.layout.layers))

    def seal(self, tokens: int) -> None:
        """The prefix is complete: all its tokens readable, the rest of its room given back."""
        self._require_open()
        self._check_length(tokens)
        if tokens < 1:
            raise BadInput("a prefix of no tokens cannot be sealed; close its writer")
        self._entry = self._pool.publish(self._entry, tokens, whole=True, trim=True)
        self._committed = tokens
        self._end()

    def close(self) -> None:
        """Without a seal: what was committed stays, the rest goes back."""
        if self._open:
            # The mark goes first: whoever takes the entry next sets one of its own on it.
            self._end()
            self._pool.drop(self._entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write_rows(self, layer: int, start: int, flat: Any) -> None:
        per_page = self._pool.layout.page_tokens
        size = self._pool.layout.entry_bytes
        done, count = 0, len(flat) // size
        while done < count:
            page, inside = divmod(start + done, per_page)
            here = min(count - done, per_page - inside)
            room = self._pool.page_rows(layer, self._pages[page])
            room[inside * size : (inside + here) * size] = flat[done * size : (done + here) * size]
            done += here

    def _write_index(self, layer: int, start: int, count: int, index: Any) -> None:
        layout = self._pool.layout
        if start % layout.page_tokens:
            raise BadInput(f"index keys are put from a page's first token on, not from {start}")
        pages = layout.pages(count)
        flat = as_bytes(index, pages, layout.index_page_bytes, "pages of index keys")
        first = start // layout.page_tokens
        for number, keys in enumerate(flat.reshape(pages, layout.index_page_bytes)):
            self._pool.page_index(layer, self._pages[first + number])[:] = keys

    def _check_room(self, start: int, count: int) -> None:
        if start < self._committed:
            raise BadInput(f"token {start} is sealed already: {self._committed} are committed")
        if start < 0 or start + count > self.capacity:
            raise BadInput(
                f"tokens {start}..{start + count} are outside a prefix of {self.capacity}"
            )

    def _check_length(self, tokens: int) -> None:
        if not self._committed <= tokens <= self.capacity:
            raise BadInput(
                f"{tokens} tokens: {self._committed} are committed, there is room for "
                f"{self.capacity}"
            )

    def _require_open(self) -> None:
        if not self._open:
            raise Closed("this writer has ended")

    def _end(self) -> None:
        self._open = False
        self._mark.close()
