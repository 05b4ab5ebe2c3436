"""KV page pools: the tensors behind page ids. Needs torch; the rest of the cache does not.

One allocation per pool. Which page is whose is the allocator's and the manager's business; this
file only reads and writes pages that it is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moonpool.cache.allocator import PageAllocator
from moonpool.cache.base import I32
from moonpool.cache.layout import KvLayout
from moonpool.core.errors import BadInput, missing_extra

if TYPE_CHECKING:
    import torch

TORCH_NAMES = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}


class PagePool:
    """`pages` pages of `layout` on `device`, with their allocator.

    fp8 stores value / scale and reads value * scale: `key_scale` for keys and latents,
    `value_scale` for values; other types ignore both. Raises BadInput, MissingExtra without torch.
    """

    def __init__(
        self,
        layout: KvLayout,
        pages: int,
        device: str | torch.device = "cpu",
        *,
        key_scale: float = 1.0,
        value_scale: float = 1.0,
    ) -> None:
        try:
            import torch
        except ImportError:
            raise missing_extra("a KV page pool", "engine") from None
        self.layout = layout
        self.allocator = PageAllocator(pages)
        self.dtype: torch.dtype = getattr(torch, TORCH_NAMES.get(layout.dtype, layout.dtype))
        self.storage = torch.zeros(layout.storage_shape(pages), dtype=self.dtype, device=device)
        """The one tensor, of `layout.storage_shape(pages)`: what a transport may register."""
        self._scales = dict.fromkeys(layout.parts, 1.0)
        if layout.itemsize == 1:
            self._scales = {
                part: value_scale if part == "value" else key_scale for part in layout.parts
            }

    @property
    def pages(self) -> int:
        return self.allocator.pages

    @property
    def device(self) -> torch.device:
        return self.storage.device

    def part(self, layer: int, part: str) -> torch.Tensor:
        """View [pages, page_size, heads, dim] (NHD) or [pages, heads, page_size, dim] (HND)."""
        number = self._number(part)
        if self.layout.page_first:
            return self.storage[:, layer, number]
        return self.storage[layer, number]

    def key(self, layer: int) -> torch.Tensor:
        """The keys of a layer, a view."""
        return self.part(layer, "key")

    def value(self, layer: int) -> torch.Tensor:
        """The values of a layer, a view."""
        return self.part(layer, "value")

    def latent(self, layer: int) -> torch.Tensor:
        """The latents of a layer (MLA), a view."""
        return self.part(layer, "latent")

    def write(self, layer: int, slots: torch.Tensor, *parts: torch.Tensor) -> None:
        """Scatters tokens: part i is [tokens, heads, dim], token j goes to slot `slots[j]`.

        `slots` int64[tokens], slot = page * page_size + place in the page (see `slots_of`).
        """
        size = self.layout.page_size
        pages, places = slots // size, slots % size
        names = self.layout.parts[: len(parts)]
        if len(names) != len(parts):
            raise BadInput(f"{len(parts)} tensors for the parts {', '.join(self.layout.parts)}")
        for name, tokens in zip(names, parts, strict=True):
            stored = self._to_storage(tokens, self._scales[name])
            place = self._words(self.part(layer, name))
            if self.layout.order == "HND":
                place[pages, :, places] = stored
            else:
                place[pages, places] = stored

    def gather(
        self, layer: int, pages: torch.Tensor, tokens: int, dtype: torch.dtype | None = None
    ) -> tuple[torch.Tensor, ...]:
        """The first `tokens` tokens of `pages` (int64[n]): one [tokens, heads, dim] per part,
        copies, in `dtype` (default: the storage's; float32 for fp8)."""
        return tuple(self._gather(layer, name, pages, tokens, dtype) for name in self.layout.parts)

    def page_views(self, page: int, layer: int | None = None) -> list[memoryview]:
        """The bytes of a page, of one layer or of all, as writable views in the order of
        `layout.axes`. CPU only. Raises BadInput."""
        if self.storage.device.type != "cpu":
            raise BadInput(f"page_views needs a pool on the CPU, not on {self.storage.device}")
        layers = range(self.layout.layers) if layer is None else (layer,)
        return [
            _bytes_of(self.part(one, name)[page]) for one in layers for name in self.layout.parts
        ]

    def copy_page(self, source: int, target: int) -> None:
        """All layers of one page into another."""
        for layer in range(self.layout.layers):
            for name in self.layout.parts:
                place = self._words(self.part(layer, name))
                place[target] = place[source]

    def slots_of(self, table: I32, first: int, count: int) -> torch.Tensor:
        """int64[count]: slots of tokens `first`, `first` + 1, ... of a sequence with this table."""
        import torch

        size = self.layout.page_size
        places = torch.arange(first, first + count, dtype=torch.int64, device=self.device)
        pages = torch.as_tensor(table, device=self.device).to(torch.int64)
        return pages[places // size] * size + places % size

    def _number(self, part: str) -> int:
        if part not in self.layout.parts:
            raise BadInput(f"this pool holds {', '.join(self.layout.parts)}, not {part!r}")
        return self.layout.parts.index(part)

    def _gather(
        self, layer: int, name: str, pages: torch.Tensor, tokens: int, dtype: torch.dtype | None
    ) -> torch.Tensor:
        import torch

        found = self._words(self.part(layer, name))[pages]
        if self.layout.order == "HND":
            found = found.transpose(1, 2)
        found = found.reshape(-1, self.layout.heads, self.layout.dim)[:tokens]
        if self.layout.itemsize > 1:
            return found if dtype is None else found.to(dtype)
        wide = found.contiguous().view(self.dtype).to(torch.float32) * self._scales[name]
        return wide if dtype is None else wide.to(dtype)

    def _to_storage(self, tokens: torch.Tensor, scale: float) -> torch.Tensor:
        import torch

        if self.layout.itemsize > 1:
            return tokens.to(self.dtype)
        most = torch.finfo(self.dtype).max  # beyond it a cast gives NaN or infinity
        scaled = (tokens.to(torch.float32) / scale).clamp(-most, most)
        return scaled.to(self.dtype).view(torch.uint8)

    def _words(self, tensor: torch.Tensor) -> torch.Tensor:
        """fp8 as bytes: indexing is not there for it on every device."""
        import torch

        return tensor.view(torch.uint8) if self.layout.itemsize == 1 else tensor


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    import torch

    return memoryview(tensor.view(torch.uint8).numpy()).cast("B")
