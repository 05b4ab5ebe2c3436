"""Layer-wise writing and reading: objects in pieces, whole or not at all at the end."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from moonpool.core.errors import BadSize, Closed
from moonpool.pool import operations
from moonpool.pool.client_state import Placement, Replica
from moonpool.pool.inputs import Key, as_count, as_items, as_replicas, as_source, as_target
from moonpool.pool.ports import Buffer, Status
from moonpool.pool.protocol_reserve import Attempt, PutOptions
from moonpool.pool.protocol_session import (
    Claims,
    abort_write,
    close_write,
    find,
    open_write,
    read_pieces,
    write_pieces,
)
from moonpool.pool.results import Miss, MissReason, PutResult, PutStatus

if TYPE_CHECKING:
    from moonpool.pool.shell import Shell

LEASE_S = 10.0


def layer_bounds(size: int, layers: int, layer: int) -> tuple[int, int]:
    """Offset and length of `layer` in an object of `size` bytes split into equal layers."""
    as_count(layer, "a layer", 0, layers - 1)
    each = size // layers
    return layer * each, each


def check_piece(index: int, count: int, offset: int) -> None:
    """A session's object and a place in it."""
    as_count(index, "an object's index", 0, count - 1)
    as_count(offset, "an offset in bytes")


def check_layers(sizes: Sequence[int], layers: int) -> None:
    as_count(layers, "layers", 1)
    for size in sizes:
        if as_count(size, "a size in bytes") % layers:
            raise BadSize(f"an object of {size} bytes does not split into {layers} equal layers")


class WriteSession:
    """Objects of known sizes, written in pieces and committed together at the end.

    `write(layer, buffers)` writes one layer of every object; `write_at(index, offset, data)` any
    piece. Objects that cannot be written (they exist, are in flight, no room) have their `results`
    entry at once, and writes to them are skipped. Bytes never written are undefined, so write all.
    A session must end within the master's `reservation_ms`.
    """

    def __init__(
        self,
        shell: Shell,
        keys: Sequence[bytes],
        sizes: Sequence[int],
        *,
        layers: int,
        replicas: int,
        parents: Sequence[Key | None] | Literal["chain"] | None,
        parent: Key | None,
        timeout_s: float,
    ) -> None:
        if len(keys) != len(sizes):
            raise BadSize(f"{len(keys)} keys but {len(sizes)} sizes")
        check_layers(sizes, layers)
        self.layers = layers
        self._shell = shell
        self._timeout_s = timeout_s
        self._items = as_items(keys, [b""] * len(keys), parents, parent)
        for item, size in zip(self._items, sizes, strict=True):
            item.size = size
        count, least = as_replicas(replicas, None)
        self._options = PutOptions(count, least, chain=parents == "chain")
        self._open = True
        self._attempts: list[Attempt] = []
        self._claims: Claims = {}
        if self._items:
            self._attempts, self._claims = shell.run(
                lambda context: open_write(context, self._items, self._options), timeout_s
            )

    @property
    def results(self) -> list[PutResult | None]:
        """Per object: None while it is being written."""
        return [item.result for item in self._items]

    def write(self, layer: int, buffers: Sequence[Buffer]) -> None:
        """Layer `layer` of every object: `buffers[i]` is size_i / layers bytes."""
        if len(buffers) != len(self._items):
            raise BadSize(f"{len(self._items)} objects but {len(buffers)} buffers")
        offsets, sources = [], []
        for item, buffer in zip(self._items, buffers, strict=True):
            offset, length = layer_bounds(item.size, self.layers, layer)
            source, size = as_source(buffer)
            if size != length:
                raise BadSize(f"layer {layer} of {item.key!r} is {length} bytes, not {size}")
            offsets.append(offset)
            sources.append(source)
        self._write(offsets, sources)

    def write_at(self, index: int, offset: int, data: Buffer) -> None:
        """`data` at `offset` of object `index`."""
        check_piece(index, len(self._items), offset)
        source, size = as_source(data)
        whole = self._items[index].size
        if offset + size > whole:
            raise BadSize(f"bytes {offset}..{offset + size} are outside an object of {whole}")
        offsets = [0] * len(self._items)
        sources: list[Buffer | None] = [None] * len(self._items)
        offsets[index], sources[index] = offset, source
        self._write(offsets, sources)

    def _write(self, offsets: Sequence[int], sources: Sequence[Buffer | None]) -> None:
        self._check_open()
        self._shell.run(
            lambda context: write_pieces(context, self._claims, offsets, sources), self._timeout_s
        )

    def commit(self) -> list[PutResult]:
        """Seal and make visible; one result per object."""
        self._check_open()
        self._open = False
        return self._shell.run(
            lambda context: close_write(
                context, self._items, self._attempts, self._claims, self._options
            ),
            self._timeout_s,
        )

    def abort(self) -> None:
        """Leave nothing behind."""
        if not self._open:
            return
        self._open = False
        self._shell.run(
            lambda context: abort_write(context, self._attempts, self._claims), self._timeout_s
        )
        for item in self._items:
            if item.result is None:
                item.result = PutResult(PutStatus.LOST, 0, "the session was aborted")

    def _check_open(self) -> None:
        if not self._open:
            raise Closed("this write session has ended")

    def __del__(self) -> None:
        # Anything may be locked when this runs: the claims are only laid down for who gives back.
        if getattr(self, "_open", False) and self._attempts:
            self._shell.state.forgotten.append((self._attempts, self._claims))

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
        elif self._open:
            self.commit()


class ReadSession:
    """Objects read in pieces. `misses[i]` is a Miss where object i cannot be read, else None.

    Objects are leased meanwhile (renewed with each read), so that they are not evicted; a removed
    object turns into a miss. Pieces are generation-checked, not CRC-checked.
    """

    def __init__(
        self, shell: Shell, keys: Sequence[bytes], *, layers: int, timeout_s: float
    ) -> None:
        self.layers = layers
        self._shell = shell
        self._timeout_s = timeout_s
        found = shell.run(lambda context: find(context, keys), timeout_s)
        self.misses: list[Miss | None] = [a if isinstance(a, Miss) else None for a in found]
        self._placements: list[Placement | None] = [
            a if isinstance(a, Placement) else None for a in found
        ]
        self.sizes = [p.size if p else 0 for p in self._placements]
        if layers != 1:
            check_layers(self.sizes, layers)
        self._open = True
        self._lease = 0
        self._lease_end = 0.0
        self._renew()

    def read(self, layer: int, buffers: Sequence[Buffer]) -> list[bool]:
        """Fill `buffers[i]` with layer `layer` of object i; False where it is a miss."""
        if len(buffers) != len(self._placements):
            raise BadSize(f"{len(self._placements)} objects but {len(buffers)} buffers")
        offsets = []
        for size, buffer in zip(self.sizes, buffers, strict=True):
            offset, length = layer_bounds(size, self.layers, layer)
            given = memoryview(as_target(buffer)).nbytes
            if given != length and size:
                raise BadSize(f"layer {layer} is {length} bytes, the buffer {given}")
            offsets.append(offset)
        return self._read(offsets, list(buffers))

    def read_at(self, index: int, offset: int, buffer: Buffer) -> bool:
        """Fill `buffer` from `offset` of object `index`; False: a miss."""
        check_piece(index, len(self._placements), offset)
        offsets = [0] * len(self._placements)
        buffers: list[Buffer | None] = [None] * len(self._placements)
        offsets[index], buffers[index] = offset, as_target(buffer)
        return self._read(offsets, buffers)[index]

    def _read(self, offsets: Sequence[int], buffers: Sequence[Buffer | None]) -> list[bool]:
        if not self._open:
            raise Closed("this read session has ended")
        if self._shell.now() > self._lease_end - LEASE_S / 2:
            self._renew()
        tried = 0
        pending = list(buffers)
        done = [False] * len(pending)
        while any(buffer is not None for buffer in pending):
            replicas = [self._replica(i, tried) for i in range(len(pending))]
            statuses = self._shell.run(
                lambda context, r=replicas, b=pending: read_pieces(context, r, offsets, b),  # type: ignore[misc]
                self._timeout_s,
            )
            for i, status in enumerate(statuses):
                if status == Status.OK:
                    done[i], pending[i] = True, None
                elif status == Status.BOUNDS:
                    raise BadSize(f"a piece at {offsets[i]} is outside object {i}")
                elif pending[i] is not None and self._replica(i, tried + 1) is None:
                    pending[i] = None
                    self.misses[i] = self.misses[i] or Miss(MissReason.ABSENT)
            tried += 1
        return done

    def _replica(self, index: int, tried: int) -> Replica | None:
        placement = self._placements[index]
        if placement is None or self.misses[index] or tried >= len(placement.replicas):
            return None
        return placement.replicas[tried]

    def _renew(self) -> None:
        placements = [p for p in self._placements if p is not None]
        if not placements:
            return
        start = self._shell.now()
        number = self._lease
        self._lease, _ = self._shell.run(
            lambda context: operations.lease(context, number, placements, LEASE_S),
            self._timeout_s,
        )
        self._lease_end = start + LEASE_S

    def close(self) -> None:
        self._open = False
        if self._lease:
            number, self._lease = self._lease, 0
            self._shell.run(
                lambda context: operations.lease(context, number, [], 0.0), self._timeout_s
            )

    def __enter__(self) -> ReadSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
