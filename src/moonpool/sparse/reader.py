"""A reader of one prefix: chosen rows, index keys layer by layer, hints.

Every call checks its positions before anything moves. Which transport is below is the source's
business; results are the same bytes for all.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from moonpool import _core
from moonpool.core.errors import BadInput, Closed, DeadlineExceeded
from moonpool.sparse.layout import U8, U32, SparseLayout, as_positions, as_rows, lines_of
from moonpool.sparse.source import RowSource, TableSource

Hint = Sequence[U32]  # positions by layer
THREADS_MAX = 65  # 64 that help
_WAIT_S = 30.0
_AHEAD = 2  # layers: one on its way, one asked for, so that the thread that brings them never waits
_CLOSED = "this sparse reader is closed; open the prefix again"


class GatherStats(NamedTuple):
    """What one gather moved: `lines` cache lines of the pool touched."""

    rows: int
    lines: int
    nbytes: int
    seconds: float


class ReaderCounters(NamedTuple):
    """Since the reader was opened; bytes are of rows and keys, without framing."""

    gathers: int
    rows: int
    row_bytes: int
    index_bytes: int


class Ticket:
    """A gather under way; the destination is the reader's until it is over."""

    def __init__(self, future: Future[GatherStats]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        return self._future.done()

    def wait(self, timeout_s: float = _WAIT_S) -> GatherStats:
        """Raises what the gather raised, DeadlineExceeded after `timeout_s` (it goes on then)."""
        try:
            return self._future.result(timeout_s)
        except TimeoutError:
            raise DeadlineExceeded(f"the gather was not over after {timeout_s} s") from None


class SparseReader:
    """Rows of one prefix on demand. Thread-safe but for `close`; a context manager.

    Every read raises PrefixGone when the prefix was evicted or removed under this reader, BadInput
    for positions that are none of its tokens, BadSize for a destination of another size.
    """

    def __init__(
        self,
        source: RowSource,
        *,
        key: bytes = b"",
        generation: int = 0,
        hint: Hint = (),
        keep: Callable[[], None] | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        self.key = key
        self.generation = generation
        self._source = source
        self._hint = hint
        self._keep = keep
        self._release = release
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False
        self._counts = [0, 0, 0, 0]

    @property
    def source(self) -> RowSource:
        return self._source

    @property
    def layout(self) -> SparseLayout:
        return self._source.layout

    @property
    def length(self) -> int:
        """Tokens that can be read."""
        return self._source.tokens

    @property
    def kind(self) -> str:
        return self._source.kind

    @property
    def counters(self) -> ReaderCounters:
        with self._lock:
            return ReaderCounters(*self._counts)

    def use_threads(self, threads: int) -> None:
        """Every gather and copy from here on is split between `threads` threads, the caller's
        among them; 1, as at first: nobody helps. Parts are taken, not dealt out, so a helper that
        gets no processor costs little. Not while another call is under way.

        Raises BadInput for less than 1 or more than 65, and where no rows are mapped: over TCP the
        node packs them.
        """
        if not isinstance(self._source, TableSource):
            raise BadInput(f"rows that come by {self.kind} are moved by one thread")
        if not 1 <= threads <= THREADS_MAX:
            raise BadInput(f"threads are 1 to {THREADS_MAX}, not {threads}")
        self._source.helpers = _core.Helpers(threads - 1) if threads > 1 else None

    def gather(self, layer: int, positions: Any, out: Any = None) -> GatherStats:
        """Rows of one layer into `out` (len(positions) rows of entry_bytes), in the order asked.

        Positions may be unsorted and repeat themselves.
        """
        column = as_positions(positions, self.length)
        self._begin(layer)
        flat = as_rows(out, len(column), self.layout.entry_bytes)
        # One layer asked for layer after layer: what `asked` looks at is known here.
        one = np.array([layer, len(column)], np.uint32)
        return self._move(one[:1], one[1:], column, flat)

    def gather_layers(
        self, layers: Any, counts: Any, positions: Any, out: Any = None
    ) -> GatherStats:
        """Several layers at once (over TCP: one frame): layer `layers[i]` wants the next
        `counts[i]` of `positions`. Rows come one after another in that order."""
        return self._gather_into(layers, counts, as_positions(positions, self.length), out)

    def gather_async(self, layer: int, positions: Any, out: Any) -> Ticket:
        """The same in the background; input is checked before it returns."""
        column = as_positions(positions, self.length)
        numbers, sizes = self.asked([layer], [len(column)], column)
        flat = as_rows(out, len(column), self.layout.entry_bytes)
        with self._lock:
            if self._closed:  # a thread made now would never be ended
                raise Closed(_CLOSED)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "moonpool-gather")
            return Ticket(self._pool.submit(self._gather, numbers, sizes, column, flat))

    def read_layer(self, layer: int, out: Any) -> None:
        """Every row of a layer, `length` rows of entry_bytes: the full fetch."""
        self._begin(layer)
        self._source.copy_rows(layer, as_rows(out, self.length, self.layout.entry_bytes))
        self._count(0, self.length, self.length * self.layout.entry_bytes, 0)

    def load_index(
        self, layers: Sequence[int] | None = None, out: Any = None, *, ahead: bool = False
    ) -> Generator[tuple[int, U8], None, None]:
        """Index keys layer by layer, as they arrive: (layer, u8[pages, index_page_bytes]).

        With `out` (u8[len(layers), pages, index_page_bytes]) they are put there, else each layer
        gets memory of its own. Of the last page only the tokens written mean anything. `ahead`
        brings the next layers in the background, two at the most, while the caller works on this
        one.
        """
        chosen = range(self.layout.layers) if layers is None else layers
        pages, page_bytes = self.layout.pages(self.length), self.layout.index_page_bytes
        if out is not None:
            out = as_rows(out, len(chosen) * pages, page_bytes).reshape(
                len(chosen), pages, page_bytes
            )

        def bring(number: int) -> tuple[int, U8]:
            layer = chosen[number]
            self._begin(layer)
            keys = np.empty((pages, page_bytes), np.uint8) if out is None else out[number]
            self._source.copy_index(layer, keys.reshape(-1))
            self._count(0, 0, 0, keys.nbytes)
            return layer, keys

        if not ahead:
            yield from map(bring, range(len(chosen)))
            return
        with ThreadPoolExecutor(1, "moonpool-index") as thread:
            numbers = iter(range(len(chosen)))
            coming = deque(thread.submit(bring, number) for number in islice(numbers, _AHEAD))
            while coming:
                ready = coming.popleft().result()
                coming.extend(thread.submit(bring, number) for number in islice(numbers, 1))
                yield ready

    def hint(self) -> Hint:
        """Positions that the prefix's last query chose at prefill, by layer; empty: none kept."""
        return self._hint

    def renew(self) -> None:
        """Keeps the lease for another while; reads do that by themselves. Raises PrefixGone."""
        self._begin(0)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)
        self._source.close()
        if self._release is not None:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- inside; the hot buffer uses these, too ---------------------------------------------------

    def begin(self) -> None:
        """Before rows are read from the source directly: open, and the lease renewed."""
        self._begin(0)

    def count_rows(self, rows: int) -> None:
        self._count(1, rows, rows * self.layout.entry_bytes, 0)

    def asked(self, layers: Any, counts: Any, column: U32) -> tuple[U32, U32]:
        """Layers and counts as the source wants them. Raises BadInput when they are not this
        prefix's, or do not fit the positions."""
        numbers, sizes = np.asarray(layers, np.int64), np.asarray(counts, np.int64)
        if numbers.ndim != 1 or numbers.shape != sizes.shape or int(sizes.sum()) != len(column):
            raise BadInput(
                f"{numbers.size} layers with counts that add up to {int(sizes.sum())} do not fit "
                f"{len(column)} positions"
            )
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.layout.layers:
            raise BadInput(f"layers are 0 to {self.layout.layers - 1}, not {numbers.tolist()}")
        if sizes.size and int(sizes.min()) < 0:
            raise BadInput("counts cannot be negative")
        return numbers.astype(np.uint32), sizes.astype(np.uint32)

    def _gather_into(self, layers: Any, counts: Any, column: U32, out: Any) -> GatherStats:
        numbers, sizes = self.asked(layers, counts, column)
        flat = as_rows(out, len(column), self.layout.entry_bytes)
        return self._gather(numbers, sizes, column, flat)

    def _gather(self, layers: U32, counts: U32, positions: U32, out: U8) -> GatherStats:
        self._begin(0)
        return self._move(layers, counts, positions, out)

    def _move(self, layers: U32, counts: U32, positions: U32, out: U8) -> GatherStats:
        start = time.perf_counter()
        self._source.gather(layers, counts, positions, out)
        seconds = time.perf_counter() - start
        self.count_rows(len(positions))
        entry_bytes = self.layout.entry_bytes
        rows = len(positions)
        return GatherStats(rows, lines_of(rows, entry_bytes), rows * entry_bytes, seconds)

    def _begin(self, layer: int) -> None:
        if self._closed:
            raise Closed(_CLOSED)
        if not 0 <= layer < self.layout.layers:
            raise BadInput(f"layers are 0 to {self.layout.layers - 1}, not {layer}")
        if self._keep is not None:
            self._keep()

    def _count(self, gathers: int, rows: int, row_bytes: int, index_bytes: int) -> None:
        with self._lock:
            for i, more in enumerate((gathers, rows, row_bytes, index_bytes)):
                self._counts[i] += more


class UnionRows(NamedTuple):
    """Rows of several requests on one prefix, each row once: request r's are `rows[at[r]]`."""

    rows: U8
    at: list[NDArray[np.int64]]
    asked: int
    moved: int


def gather_union(reader: SparseReader, layer: int, wanted: Sequence[Any]) -> UnionRows:
    """One gather for requests that read the same prefix in the same step: what several of them
    want is moved once. Raises what `gather` raises."""
    columns = [as_positions(positions, reader.length) for positions in wanted]
    everything = np.concatenate(columns) if columns else np.zeros(0, np.uint32)
    union, inverse = np.unique(everything, return_inverse=True)
    rows = np.empty((len(union), reader.layout.entry_bytes), np.uint8)
    reader.gather(layer, union, rows)
    ends = np.cumsum([0, *map(len, columns)]).tolist()
    at = [inverse.reshape(-1)[a:b] for a, b in zip(ends, ends[1:], strict=False)]
    return UnionRows(rows, at, len(everything), len(union))
