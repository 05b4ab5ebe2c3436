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

U64 = npt.NDArray[np.uint64]
U8 = npt.NDArray[np.uint8]


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
        self._stride = np.uint64(stride)
        self._pieces = np.array(piece_offsets, np.uint64)
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

    def pieces(self, block_ids: npt.NDArray[np.int64]) -> tuple[U64, U64]:
        """Offsets into `memory` and lengths of the pieces of these blocks, block by block."""
        if len(block_ids) and not 0 <= block_ids.min() <= block_ids.max() < self.count:
            raise IndexError(f"block {block_ids.max()} of a cache of {self.count} blocks")
        starts = block_ids.astype(np.uint64)[:, None] * self._stride + self._pieces
        return starts.ravel(), np.full(starts.size, self._piece_bytes, np.uint64)

    def packed(self, objects: int, object_bytes: int, offset: int) -> U64:
        """Where the same pieces lie in `objects` objects back to back, the layer at `offset`."""
        starts = np.arange(objects, dtype=np.uint64)[:, None] * np.uint64(object_bytes)
        inside = np.arange(len(self._pieces), dtype=np.uint64) * np.uint64(self._piece_bytes)
        return (starts + np.uint64(offset) + inside).ravel()


class GroupLayout:
    """The layers of one KV group in the order in which an object holds them."""

    def __init__(self, layers: Mapping[str, LayerBlocks]) -> None:
        self.names = list(layers)
        self.index = {name: i for i, name in enumerate(self.names)}
        self._layers = list(layers.values())
        ends = np.cumsum([layer.block_bytes for layer in self._layers])
        self._offsets = [0, *ends.tolist()]
        self.object_bytes = int(ends[-1])

    def gather(self, layer: int, block_ids: Sequence[int], objects: U8) -> None:
        """One layer of these blocks, from the engine into `objects` (back to back)."""
        self._move(layer, block_ids, objects, into_engine=False)

    def scatter(self, layer: int, block_ids: Sequence[int], objects: U8) -> None:
        """One layer of these blocks, from `objects` into the engine."""
        self._move(layer, block_ids, objects, into_engine=True)

    def _move(self, at: int, block_ids: Sequence[int], objects: U8, into_engine: bool) -> None:
        layer = self._layers[at]
        engine, lengths = layer.pieces(np.asarray(block_ids, np.int64))
        packed = layer.packed(len(block_ids), self.object_bytes, self._offsets[at])
        if into_engine:
            job = _core.BlockCopy(layer.memory, engine, objects, packed, lengths, False)
        else:
            job = _core.BlockCopy(objects, packed, layer.memory, engine, lengths, False)
        outcome = job.run(_FOREVER)
        assert outcome == 0, f"a copy between mapped memory ended with status {outcome}"

    def __len__(self) -> int:
        return len(self._layers)


_FOREVER = 2**63 - 1  # a copy of memory; nothing in it waits


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
