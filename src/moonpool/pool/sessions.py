"""Layer-wise writing and reading: objects in pieces, whole or not at all at the end."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from moonpool.pool.gathering import RowsWanted
from moonpool.pool.ports import Buffer
from moonpool.pool.results import Miss, PutResult
from moonpool.pool.session_state import ReadState, WriteState

if TYPE_CHECKING:
    from moonpool.pool.shell import Shell


class WriteSession:
    """Objects of known sizes, written in pieces and committed together at the end.

    `write(layer, buffers)` writes one layer of every object; `write_at(index, offset, data)` any
    piece. Objects that cannot be written (they exist, are in flight, no room) have their `results`
    entry at once, and writes to them are skipped. Bytes never written are undefined, so write all.
    A session must end within the master's `reservation_ms`.
    """

    def __init__(self, shell: Shell, state: WriteState, timeout_s: float) -> None:
        self._shell = shell
        self._state = state
        self._timeout_s = timeout_s
        shell.run(state.begin, timeout_s)

    @property
    def layers(self) -> int:
        return self._state.layers

    @property
    def results(self) -> list[PutResult | None]:
        """Per object: None while it is being written."""
        return self._state.results

    def write(self, layer: int, buffers: Sequence[Buffer]) -> None:
        """Layer `layer` of every object: `buffers[i]` is size_i / layers bytes."""
        self._shell.run(self._state.write(layer, buffers), self._timeout_s)

    def write_at(self, index: int, offset: int, data: Buffer) -> None:
        """`data` at `offset` of object `index`."""
        self._shell.run(self._state.write_at(index, offset, data), self._timeout_s)

    def commit(self) -> list[PutResult]:
        """Seal and make visible; one result per object."""
        self._state.end()
        return self._shell.run(self._state.commit, self._timeout_s)

    def abort(self) -> None:
        """Leave nothing behind."""
        if self._state.open:
            self._state.end()
            self._shell.run(self._state.abort, self._timeout_s)

    def __enter__(self) -> WriteSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._state.open:
            self.commit()


class ReadSession:
    """Objects read in pieces. `misses[i]` is a Miss where object i cannot be read, else None.

    Objects are leased meanwhile (renewed with each read), so that they are not evicted; a removed
    object turns into a miss. Pieces are generation-checked, not CRC-checked.
    """

    def __init__(
        self, shell: Shell, keys: Sequence[bytes], *, layers: int, timeout_s: float
    ) -> None:
        self._shell = shell
        self._state = ReadState(layers)
        self._timeout_s = timeout_s
        shell.run(lambda context: self._state.begin(context, keys), timeout_s)

    @property
    def layers(self) -> int:
        return self._state.layers

    @property
    def sizes(self) -> list[int]:
        """Of each object in bytes; 0 for a miss."""
        return self._state.sizes

    @property
    def misses(self) -> list[Miss | None]:
        return self._state.misses

    def read(self, layer: int, buffers: Sequence[Buffer]) -> list[bool]:
        """Fill `buffers[i]` with layer `layer` of object i; False where it is a miss."""
        return self._shell.run(self._state.read(layer, buffers), self._timeout_s)

    def read_at(self, index: int, offset: int, buffer: Buffer) -> bool:
        """Fill `buffer` from `offset` of object `index`; False: a miss."""
        return self._shell.run(self._state.read_at(index, offset, buffer), self._timeout_s)[index]

    def read_rows(self, wanted: RowsWanted, out: Buffer) -> bool:
        """Chosen rows out of all objects into `out`, one after another: copied in place on this
        host, packed into one frame by each node elsewhere. False: an object is gone."""
        return self._shell.run(self._state.read_rows(wanted, out), self._timeout_s)

    def close(self) -> None:
        if self._state.end():
            self._shell.run(self._state.release, self._timeout_s)

    def __enter__(self) -> ReadSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
