"""The KV memory of one rank, as its owner registers it: buffers, and where blocks lie in them.

Decode registers it anew for each session, under region numbers that are never used again. So a
session's writes can be withdrawn without touching another's: unregistering returns when no byte
of that session can be written any more, whatever its peer does.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moonpool import _core
from moonpool.core.errors import BadInput, LayoutMismatch
from moonpool.transfer.engine import Engine
from moonpool.transfer.handoff.layout import KVLayout
from moonpool.transfer.handoff.mapping import U64
from moonpool.transfer.handoff.messages import Part
from moonpool.transfer.segment import Segment, as_bytes


class PartMemory(NamedTuple):
    """One part of one layer: a writable C-contiguous buffer, the byte at which block 0 begins, and
    the bytes from a block to the next. Parts may share a buffer."""

    buffer: Any
    offset: int
    stride: int


class KVMemory:
    """`layers[layer][part]` of `blocks` blocks each. Raises BadInput when they do not fit in."""

    def __init__(
        self, layout: KVLayout, blocks: int, layers: Sequence[Sequence[PartMemory]]
    ) -> None:
        layout.check()
        if len(layers) != layout.layers or any(len(parts) != layout.parts for parts in layers):
            shape = [len(parts) for parts in layers]
            raise BadInput(
                f"KV memory of {len(layers)} layers with {shape} parts; the layout has "
                f"{layout.layers} of {layout.parts}"
            )
        self.layout, self.blocks = layout, blocks
        self._arrays: dict[int, NDArray[np.uint8]] = {}
        self.parts: list[list[tuple[int, int, int]]] = []
        for parts in layers:
            self.parts.append([self._place(part, layout, blocks) for part in parts])

    def _place(self, part: PartMemory, layout: KVLayout, blocks: int) -> tuple[int, int, int]:
        array = as_bytes(part.buffer, writable=True)
        key = array.__array_interface__["data"][0]
        self._arrays.setdefault(key, array)
        end = part.offset + (blocks - 1) * part.stride + layout.block_bytes
        if part.stride < layout.block_bytes or part.offset < 0 or end > array.nbytes:
            raise BadInput(
                f"{blocks} blocks of {layout.block_bytes} bytes, {part.stride} apart from byte "
                f"{part.offset}, do not fit into a buffer of {array.nbytes} bytes"
            )
        return key, part.offset, part.stride

    def stride(self) -> int:
        """The bytes between blocks; raises BadInput when layers differ in it."""
        strides = {stride for parts in self.parts for _, _, stride in parts}
        if len(strides) != 1:
            raise BadInput(f"KV memory whose layers have block strides {sorted(strides)}")
        return strides.pop()

    def private(self, engine: Engine) -> "list[list[tuple[Segment, int]]]":
        """As the source of pushes: per layer and part, a segment and the byte of its block 0."""
        made = {key: engine.register(array) for key, array in self._arrays.items()}
        return [[(made[key], offset) for key, offset, _ in parts] for parts in self.parts]

    def crc(self, layer: int, part: int, offsets: U64, lengths: U64) -> int:
        """CRC-32C of the CRC column of these ranges; offsets count from block 0."""
        key, base, _ = self.parts[layer][part]
        view = self._arrays[key].data
        column = [
            _core.crc32c(view[base + offset : base + offset + length])
            for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True)
        ]
        return int(_core.crc32c(np.array(column, dtype="<u4").tobytes()))

    def grant(self, engine: Engine, name: str) -> "Grant":
        """Registers the memory for one session."""
        return Grant(self, engine, name)


class Grant:
    """Leave for one session to write here, until withdraw()."""

    def __init__(self, memory: KVMemory, engine: Engine, name: str) -> None:
        self._segments = {
            key: engine.register(array, f"{name}.{number}")
            for number, (key, array) in enumerate(memory._arrays.items())
        }
        self.layers = tuple(
            tuple(
                Part(self._segments[key].region, self._segments[key].nbytes, offset, stride)
                for key, offset, stride in parts
            )
            for parts in memory.parts
        )

    def withdraw(self) -> None:
        """When it returns, no byte of the session is or will be written here."""
        for segment in self._segments.values():
            segment.close()


def check_parts(layout: KVLayout, blocks: int, layers: tuple[tuple[Part, ...], ...]) -> None:
    """What a peer says of its memory, before anything is written there. Raises LayoutMismatch."""
    if len(layers) != layout.layers or any(len(parts) != layout.parts for parts in layers):
        raise LayoutMismatch(f"the peer's memory has not {layout.layers} x {layout.parts} parts")
    for part in (part for parts in layers for part in parts):
        end = part.offset + (blocks - 1) * part.stride + layout.block_bytes
        if not (part.offset >= 0 and part.stride >= layout.block_bytes and end <= part.nbytes):
            raise LayoutMismatch(
                f"the peer's {blocks} blocks of {layout.block_bytes} bytes do not fit into its "
                f"region of {part.nbytes} bytes"
            )
