"""What a session knows, and its calls as protocols: bounds, offsets, results, leases.

Both faces drive these: `sessions.py` blocks, `aio_sessions.py` awaits. No I/O in here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from moonpool.core.errors import BadSize, Closed
from moonpool.pool import operations
from moonpool.pool.client_state import Placement, Replica
from moonpool.pool.gathering import Places, RowsWanted, gather_rows, places_of
from moonpool.pool.inputs import Key, as_count, as_items, as_source, as_target
from moonpool.pool.ports import U8, Buffer, Status
from moonpool.pool.protocol import Context, Protocol
from moonpool.pool.protocol_pieces import Piece, read_pieces
from moonpool.pool.protocol_reserve import Attempt, PutOptions
from moonpool.pool.protocol_session import (
    Claims,
    abort_write,
    close_write,
    find,
    open_write,
    write_pieces,
)
from moonpool.pool.results import Miss, PutResult, PutStatus

T = TypeVar("T")
Step = Callable[[Context], Protocol[T]]  # a checked piece of work, for a shell to run
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


class WriteState:
    """Objects of known sizes that are being written.

    made -> open (`begin`) -> ended (`commit` or `abort`); pieces go in while it is open.
    """

    def __init__(
        self,
        keys: Sequence[bytes],
        sizes: Sequence[int],
        copies: tuple[int, int],
        *,
        layers: int,
        parents: Sequence[Key | None] | Literal["chain"] | None,
        parent: Key | None,
    ) -> None:
        if len(keys) != len(sizes):
            raise BadSize(f"{len(keys)} keys but {len(sizes)} sizes")
        check_layers(sizes, layers)
        self.layers = layers
        self.items = as_items(keys, [b""] * len(keys), parents, parent)
        for item, size in zip(self.items, sizes, strict=True):
            item.size = size
        count, least = copies  # wanted, and at least
        self.options = PutOptions(count, least, chain=parents == "chain")
        self.open = True
        self._attempts: list[Attempt] = []
        self._claims: Claims = {}
        self._forgotten: deque[Any] | None = None

    def __del__(self) -> None:
        # Anything may be locked when this runs: the claims are only laid down for who gives back.
        forgotten = getattr(self, "_forgotten", None)
        if forgotten is not None and self.open and self._attempts:
            forgotten.append((self._attempts, self._claims))

    @property
    def results(self) -> list[PutResult | None]:
        return [item.result for item in self.items]

    def begin(self, context: Context) -> Protocol[None]:
        if self.items:
            opened = yield from open_write(context, self.items, self.options)
            self._attempts, self._claims = opened
            self._forgotten = context.state.forgotten

    def write(self, layer: int, buffers: Sequence[Buffer]) -> Step[None]:
        """Layer `layer` of every object, checked. Raises BadSize, BadInput, Closed."""
        if len(buffers) != len(self.items):
            raise BadSize(f"{len(self.items)} objects but {len(buffers)} buffers")
        offsets, sources = [], []
        for item, buffer in zip(self.items, buffers, strict=True):
            offset, length = layer_bounds(item.size, self.layers, layer)
            source, size = as_source(buffer)
            if size != length:
                raise BadSize(f"layer {layer} of {item.key!r} is {length} bytes, not {size}")
            offsets.append(offset)
            sources.append(source)
        return self._pieces(offsets, sources)

    def write_at(self, index: int, offset: int, data: Buffer) -> Step[None]:
        """`data` at `offset` of object `index`, checked. Raises BadSize, BadInput, Closed."""
        check_piece(index, len(self.items), offset)
        source, size = as_source(data)
        whole = self.items[index].size
        if offset + size > whole:
            raise BadSize(f"bytes {offset}..{offset + size} are outside an object of {whole}")
        offsets = [0] * len(self.items)
        sources: list[Buffer | None] = [None] * len(self.items)
        offsets[index], sources[index] = offset, source
        return self._pieces(offsets, sources)

    def _pieces(self, offsets: Sequence[int], sources: Sequence[Buffer | None]) -> Step[None]:
        self._check_open()
        return lambda context: write_pieces(context, self._claims, offsets, sources, self.options)

    def end(self) -> None:
        """Nothing is written from here on. Raises Closed when it has ended before."""
        self._check_open()
        self.open = False

    def commit(self, context: Context) -> Protocol[list[PutResult]]:
        return (
            yield from close_write(context, self.items, self._attempts, self._claims, self.options)
        )

    def abort(self, context: Context) -> Protocol[None]:
        yield from abort_write(context, self._attempts, self._claims)
        for item in self.items:
            if item.result is None:
                item.result = PutResult(PutStatus.LOST, 0, "the session was aborted")

    def _check_open(self) -> None:
        if not self.open:
            raise Closed("this write session has ended")


class ReadState:
    """Objects that are read in pieces under a lease."""

    def __init__(self, layers: int) -> None:
        as_count(layers, "layers", 1)
        self.layers = layers
        self.misses: list[Miss | None] = []
        self.sizes: list[int] = []
        self._placements: list[Placement | None] = []
        self._places: Places | None = None  # of the copies that rows come from
        self._tried: list[int] = []  # copies of each object that gave no rows
        self._elsewhere = False
        self._open = True
        self._lease = 0
        self._lease_end = 0.0

    def begin(self, context: Context, keys: Sequence[bytes]) -> Protocol[None]:
        """Find and lease them. Raises BadSize for an object that has no such layers."""
        found = yield from find(context, keys)
        self.misses = [a if isinstance(a, Miss) else None for a in found]
        self._placements = [a if isinstance(a, Placement) else None for a in found]
        self.sizes = [p.size if p else 0 for p in self._placements]
        self._tried = [0] * len(found)
        if self.layers != 1:
            check_layers(self.sizes, self.layers)
        yield from self._renew(context)

    def read(self, layer: int, buffers: Sequence[Buffer]) -> Step[list[bool]]:
        """Layer `layer` of every object, checked. Raises BadSize, BadInput, Closed."""
        if len(buffers) != len(self._placements):
            raise BadSize(f"{len(self._placements)} objects but {len(buffers)} buffers")
        offsets = []
        for size, buffer in zip(self.sizes, buffers, strict=True):
            offset, length = layer_bounds(size, self.layers, layer)
            given = memoryview(as_target(buffer)).nbytes
            if given != length and size:
                raise BadSize(f"layer {layer} is {length} bytes, the buffer {given}")
            offsets.append(offset)
        return self._fill(offsets, list(buffers))

    def read_at(self, index: int, offset: int, buffer: Buffer) -> Step[list[bool]]:
        """From `offset` of object `index`, checked. Raises BadSize, BadInput, Closed."""
        check_piece(index, len(self._placements), offset)
        offsets = [0] * len(self._placements)
        buffers: list[Buffer | None] = [None] * len(self._placements)
        offsets[index], buffers[index] = offset, as_target(buffer)
        return self._fill(offsets, buffers)

    def _fill(self, offsets: Sequence[int], buffers: Sequence[Buffer | None]) -> Step[list[bool]]:
        if not self._open:
            raise Closed("this read session has ended")
        return lambda context: self._read(context, offsets, buffers)

    def _read(
        self, context: Context, offsets: Sequence[int], buffers: Sequence[Buffer | None]
    ) -> Protocol[list[bool]]:
        """Fill `buffers[i]` from `offsets[i]` of object i."""
        if context.now() > self._lease_end - LEASE_S / 2:
            yield from self._renew(context)
        pieces: dict[int, Piece] = {}
        for i, buffer in enumerate(buffers):
            placement = self._placements[i]
            if buffer is not None and placement is not None and not self.misses[i]:
                pieces[i] = Piece(placement, offsets[i], buffer)
        yield from read_pieces(context, list(pieces.values()))
        done = [False] * len(buffers)
        for i, piece in pieces.items():
            if piece.status == Status.BOUNDS:
                raise BadSize(f"a piece at {offsets[i]} is outside object {i}")
            done[i] = piece.status == Status.OK
            if not done[i]:
                self.misses[i] = Miss(piece.reason)
        return done

    def read_rows(self, wanted: RowsWanted, out: Buffer) -> Step[bool]:
        """Rows of all objects, checked. Raises BadSize, BadInput, Closed."""
        room = np.frombuffer(as_target(out), np.uint8)
        needed = len(wanted.positions) * wanted.row_bytes
        if room.nbytes != needed:
            raise BadSize(f"the rows asked for are {needed} bytes, the buffer {room.nbytes}")
        one = len(wanted.counts) == 1
        if int(wanted.counts[0] if one else wanted.counts.sum()) != len(wanted.positions):
            raise BadSize(f"counts do not add up to {len(wanted.positions)} positions")
        if len(wanted.offsets) != len(self._placements):
            raise BadSize(f"{len(self._placements)} objects but {len(wanted.offsets)} offsets")
        if not self._open:
            raise Closed("this read session has ended")
        return lambda context: self._rows(context, wanted, room)

    def _rows(self, context: Context, wanted: RowsWanted, room: U8) -> Protocol[bool]:
        if context.now() > self._lease_end - LEASE_S / 2:
            yield from self._renew(context)
        while True:
            if self._places is None:
                self._places = places_of(list(map(self._replica, range(len(self._tried)))))
                self._elsewhere = self._copies_left()
            # While another copy is left, a silent node may take half of the time that is.
            timeout_s = context.left() / 2 if self._elsewhere else None
            gathered = yield from gather_rows(context, self._places, wanted, room, timeout_s)
            if gathered.status == Status.OK:
                return True
            if gathered.status == Status.BOUNDS:
                raise BadSize("a row lies outside its object")
            lost = np.flatnonzero(np.isin(self._places.which, gathered.bad)).tolist()
            self._places = None
            for index in lost:
                self._tried[index] += 1
            if not lost or any(self._replica(index) is None for index in lost):
                self._tried = [0] * len(self._tried)  # the next call tries all of them again
                return False

    def end(self) -> bool:
        """Nothing is read from here on; True: there is a lease to give back by `release`."""
        self._open = False
        return self._lease != 0

    def release(self, context: Context) -> Protocol[None]:
        number, self._lease = self._lease, 0
        yield from operations.lease(context, number, [], 0.0)

    def _replica(self, index: int) -> Replica | None:
        """The copy of the object that rows come from."""
        placement, tried = self._placements[index], self._tried[index]
        if placement is None or self.misses[index] or tried >= len(placement.replicas):
            return None
        return placement.replicas[tried]

    def _copies_left(self) -> bool:
        """Whether some object has a copy that was not tried."""
        return any(
            placement is not None and tried + 1 < len(placement.replicas)
            for placement, tried in zip(self._placements, self._tried, strict=True)
        )

    def _renew(self, context: Context) -> Protocol[None]:
        placements = [p for p in self._placements if p is not None]
        if not placements:
            return
        start = context.now()
        self._lease, _ = yield from operations.lease(context, self._lease, placements, LEASE_S)
        self._lease_end = start + LEASE_S
