"""Where the blocks of an engine's caches lie, and how they are packed into pool objects.

An object holds one block of one KV group: the bytes of its layers one after the other, each as it
lies in the engine. Nothing here interprets those bytes; the key says whose they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moonpool import _core
from moonpool.core.errors import BadConfig

if TYPE_CHECKING:
    import torch

U8 = npt.NDArray[np.uint8]
Buffer = Any  # of the buffer protocol, one object's bytes


class LayerBlocks:
    """One layer's cache: block i is made of pieces at i * stride + each of `piece_offsets`.

    Pieces are equally long and in the order of the logical axes. `memory` spans the whole storage
    and keeps it alive.
    """

    def __init__(
        self, memory: U8, count: int, stride: int, piece_offsets: Sequence[int], piece_bytes: int
    ) -> None:
        self.memory = memory
        self.count = count
        self.block_bytes = len(piece_offsets) * piece_bytes
        self._stride = stride
        self._pieces = list(piece_offsets)
        self._piece_bytes = piece_bytes

    @classmethod
    def of_tensor(cls, name: str, tensor: torch.Tensor, blocks: int) -> LayerBlocks:
        """The first axis counts the engine's blocks, or equal parts of them (kernel blocks).

        Raises BadConfig for what is not in this process's memory or does not divide.
        """
        import torch

        if tensor.device.type != "cpu":
            raise BadConfig(
                f"the cache of {name} is on {tensor.device}; this release of MoonpoolConnector "
                "moves caches in CPU memory only (vLLM's CPU backend)"
            )
        if tensor.shape[0] % blocks:
            raise BadConfig(
                f"the cache of {name} has {tensor.shape[0]} kernel blocks, which is no multiple of "
                f"the engine's {blocks} blocks"
            )
        memory = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
        return cls.of_strides(
            memory,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.storage_offset(),
            tensor.element_size(),
            blocks,
        )

    @classmethod
    def of_strides(
        cls,
        memory: U8,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int,
        element_bytes: int,
        blocks: int,
    ) -> LayerBlocks:
        """From the geometry of a tensor, in elements. The innermost axes that lie close together
        make one piece."""
        split = shape[0] // blocks
        axes = [(split, strides[0]), *zip(shape[1:], strides[1:], strict=True)]
        axes = [(size, step) for size, step in axes if size > 1]
        dense, outer = 1, list(axes)
        for size, step in sorted(axes, key=lambda axis: axis[1]):
            if step != dense:
                break
            dense *= size
            outer.remove((size, step))
        starts = np.zeros(1, np.int64)
        for size, step in outer:
            starts = (starts[:, None] + np.arange(size) * step).ravel()
        return cls(
            memory,
            blocks,
            strides[0] * split * element_bytes,
            [(offset + int(start)) * element_bytes for start in starts],
            dense * element_bytes,
        )

    def native(self) -> tuple[U8, int, int, list[int], int]:
        """As the core takes it."""
        return self.memory, self.count, self._stride, self._pieces, self._piece_bytes


class GroupLayout:
    """The layers of one KV group in the order in which an object holds them. Bytes move without
    the GIL; block ids outside the cache are an IndexError before a byte moves."""

    def __init__(self, layers: Mapping[str, LayerBlocks]) -> None:
        self.names = list(layers)
        self.index = {name: i for i, name in enumerate(self.names)}
        self._blocks = _core.PackedBlocks([layer.native() for layer in layers.values()])
        self.object_bytes = self._blocks.object_bytes

    def gather(self, layer: int, block_ids: Sequence[int], objects: Sequence[Buffer]) -> None:
        """One layer of these blocks, from the engine into `objects`."""
        self._blocks.pack(layer, _ids(block_ids), objects)

    def scatter(
        self,
        block_ids: Sequence[int],
        objects: Sequence[Buffer],
        crcs: Sequence[int] = (),
        gate: _core.LayerGate | None = None,
    ) -> list[bool]:
        """Whole blocks, from `objects` into the engine; layer by layer when a gate is to be told of
        each. `crcs` are CRC-32Cs of the first objects: False for one whose bytes are others, which
        fill its block all the same."""
        ids, sums = _ids(block_ids), np.asarray(crcs, np.uint32)
        if gate is None:
            return list(map(bool, self._blocks.unpack(ids, objects, sums)))
        return list(map(bool, self._blocks.unpack_layers(ids, objects, sums, gate)))

    def __len__(self) -> int:
        return len(self.names)


def _ids(block_ids: Sequence[int]) -> npt.NDArray[np.uint64]:
    """A number that is negative is too large then, and refused as such."""
    return np.asarray(block_ids, np.int64).astype(np.uint64)


def group_layouts(
    groups: Sequence[Sequence[str]], caches: Mapping[str, Any], blocks: int
) -> list[GroupLayout]:
    """Layouts of the groups (names of their layers) over what vLLM registered.

    Layers that share another's cache count once. Raises BadConfig for a layer that is missing or
    whose state is no single tensor of blocks.
    """
    layouts = []
    for names in groups:
        layers: dict[str, LayerBlocks] = {}
        seen: set[tuple[int, int]] = set()
        for name in names:
            cache = caches.get(name)
            if cache is None or isinstance(cache, list | tuple):
                found = "is missing" if cache is None else "consists of several tensors"
                raise BadConfig(f"the cache of {name} {found}; MoonpoolConnector cannot store it")
            where = (cache.untyped_storage().data_ptr(), cache.storage_offset())
            if where not in seen:
                seen.add(where)
                layers[name] = LayerBlocks.of_tensor(name, cache, blocks)
        layouts.append(GroupLayout(layers))
    return layouts
