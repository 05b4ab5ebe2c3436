"""A page's bytes, in groups of layers: what the pool moves at a time.

An object of the pool is one page: layer by layer, keys before values. Layers move in up to
`GROUPS_MAX` groups of equal size, so that the first layers can be used while later ones are on
their way, and yet no piece is small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from moonpool.core.errors import BadConfig

if TYPE_CHECKING:
    from moonpool.cache.pages import PagePool

GROUPS_MAX: Final = 8
Bytes = npt.NDArray[np.uint8]


class PageBytes:
    """Windows on the pages of a `PagePool` whose pages lie in one piece, on the CPU."""

    def __init__(self, pages: PagePool) -> None:
        import torch

        if pages.device.type != "cpu" or not pages.layout.page_first:
            raise BadConfig(
                f"pages on {pages.device} are not connected to a pool yet: engine.device = 'cpu', "
                "or no engine.pool"
            )
        layers = pages.layout.layers
        self.size = pages.layout.bytes_per_page
        self.groups = max(n for n in range(1, GROUPS_MAX + 1) if layers % n == 0)
        self.layers_per_group = layers // self.groups
        flat = pages.storage.view(torch.uint8).numpy()
        self._rows: Bytes = flat.reshape(pages.pages, self.groups, self.size // self.groups)

    def group(self, pages: npt.NDArray[np.int32], number: int) -> list[Bytes]:
        """One window a page on layer group `number`."""
        return [self._rows[page, number] for page in pages.tolist()]

    def whole(self, pages: npt.NDArray[np.int32]) -> list[Bytes]:
        """One window a page on all of it."""
        return [self._rows[page].reshape(-1) for page in pages.tolist()]

    def group_of(self, layer: int) -> int:
        return layer // self.layers_per_group

    def ends_group(self, layer: int) -> bool:
        """Whether `layer` is the last of its group."""
        return (layer + 1) % self.layers_per_group == 0
