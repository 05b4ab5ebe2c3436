"""The tensors behind page ids: what is written is gathered again, in every layout and type."""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
import pytest
import torch

from moonpool.cache import HeadsLayout, KvLayout, LatentLayout, PagePool
from moonpool.cache.layout import Order
from moonpool.core.errors import BadInput, MissingExtra

ORDERS: tuple[Order, ...] = ("NHD", "HND")
LAYOUTS: list[KvLayout] = [
    HeadsLayout(
        layers=2, kv_heads=3, head_dim=4, page_size=size, dtype=dtype, order=order, page_first=first
    )
    for size, dtype, order, first in product(
        (1, 5), ("float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"), ORDERS, (False, True)
    )
] + [LatentLayout(layers=2, latent_dim=6, rope_dim=2, page_size=3, dtype="bfloat16")]


def name(layout: KvLayout) -> str:
    order = "page-first" if layout.page_first else "layer-first"
    return f"{layout.parts[0]}-{layout.page_size}-{layout.dtype}-{layout.order}-{order}"


def values(layout: KvLayout, tokens: int) -> list[torch.Tensor]:
    """Small whole numbers: exact in every type."""
    shape = (tokens, layout.heads, layout.dim)
    return [torch.randint(-7, 8, shape).to(torch.float32) for _ in layout.parts]


@pytest.mark.parametrize("layout", LAYOUTS, ids=name)
def test_what_is_written_is_gathered(layout: KvLayout) -> None:
    torch.manual_seed(1)
    pool = PagePool(layout, 16)
    assert pool.storage.nbytes == 16 * layout.bytes_per_page
    table = pool.allocator.allocate(layout.pages_for(11))[::-1].copy()
    pages = torch.from_numpy(table).to(torch.int64)
    wanted = {}
    for layer in range(layout.layers):
        wanted[layer] = values(layout, 11)
        head, tail = ([part[:4] for part in wanted[layer]], [part[4:] for part in wanted[layer]])
        pool.write(layer, pool.slots_of(table, 0, 4), *head)
        pool.write(layer, pool.slots_of(table, 4, 7), *tail)
    for layer, parts in wanted.items():
        for found, part in zip(pool.gather(layer, pages, 11, torch.float32), parts, strict=True):
            assert torch.equal(found, part)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_the_bytes_of_a_page_are_the_same_in_every_storage_order(first: bool, order: str) -> None:
    layout = HeadsLayout(
        layers=2,
        kv_heads=2,
        head_dim=3,
        page_size=4,
        dtype="bfloat16",
        order=order,  # type: ignore[arg-type]
        page_first=first,
    )
    pool = PagePool(layout, 3)
    table = np.array([2], np.int32)
    for layer in range(2):
        numbers = torch.arange(24, dtype=torch.float32).reshape(4, 2, 3) + 24 * layer
        pool.write(layer, pool.slots_of(table, 0, 4), numbers, -numbers)
    views = pool.page_views(2)
    assert b"".join(views) == b"".join(pool.page_views(2, 0)) + b"".join(pool.page_views(2, 1))
    assert sum(view.nbytes for view in views) == layout.bytes_per_page
    whole = torch.frombuffer(bytearray(b"".join(views)), dtype=torch.bfloat16)
    whole = whole.to(torch.float32).reshape(2, 2, *layout.part_shape)
    if order == "HND":
        whole = whole.transpose(2, 3)
    expected = torch.arange(48, dtype=torch.float32).reshape(2, 4, 2, 3)
    assert torch.equal(whole[:, 0], expected)
    assert torch.equal(whole[:, 1], -expected)


@pytest.mark.parametrize("layout", LAYOUTS, ids=name)
def test_bytes_written_through_views_are_a_page(layout: KvLayout) -> None:
    """What a page of another pool held: loaded or copied, it gathers the same."""
    torch.manual_seed(2)
    source, target = PagePool(layout, 2), PagePool(layout, 4)
    table = np.array([1], np.int32)
    for layer in range(layout.layers):
        parts = values(layout, layout.page_size)
        source.write(layer, source.slots_of(table, 0, layout.page_size), *parts)
    for have, want in zip(target.page_views(3), source.page_views(1), strict=True):
        have[:] = want
    target.copy_page(3, 0)
    for layer in range(layout.layers):
        wanted = source.gather(layer, torch.tensor([1]), layout.page_size)
        for page in (3, 0):
            found = target.gather(layer, torch.tensor([page]), layout.page_size)
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_views_of_a_layer_have_the_promised_shapes() -> None:
    nhd = PagePool(HeadsLayout(layers=2, kv_heads=3, head_dim=4, page_size=5), 6)
    hnd = PagePool(HeadsLayout(layers=2, kv_heads=3, head_dim=4, page_size=5, order="HND"), 6)
    latent = PagePool(LatentLayout(layers=2, latent_dim=8, page_size=5), 6)
    assert nhd.key(1).shape == nhd.value(1).shape == (6, 5, 3, 4)
    assert hnd.key(0).shape == (6, 3, 5, 4)
    assert latent.latent(0).shape == (6, 5, 1, 8)
    assert (nhd.pages, nhd.device.type) == (6, "cpu")
    with pytest.raises(BadInput, match="holds latent, not 'key'"):
        latent.key(0)


def test_fp8_is_scaled_and_saturates() -> None:
    layout = HeadsLayout(layers=1, kv_heads=1, head_dim=2, page_size=2, dtype="fp8_e4m3")
    pool = PagePool(layout, 1, key_scale=4.0, value_scale=2.0)
    tokens = torch.tensor([[[1000.0, -8.0]]])
    pool.write(0, torch.tensor([0]), tokens, tokens * 100)
    keys, held = pool.gather(0, torch.tensor([0]), 1)
    assert keys.tolist() == [[[1024.0, -8.0]]]
    assert held.tolist() == [[[896.0, -768.0]]]
    half, _ = pool.gather(0, torch.tensor([0]), 1, torch.float16)
    assert half.dtype == torch.float16


def test_too_many_parts_are_refused() -> None:
    pool = PagePool(LatentLayout(layers=1, latent_dim=2), 1)
    one = torch.zeros(1, 1, 2)
    with pytest.raises(BadInput, match="2 tensors for the parts latent"):
        pool.write(0, torch.tensor([0]), one, one)


def test_page_views_are_for_the_cpu() -> None:
    pool = PagePool(LatentLayout(layers=1, latent_dim=2), 1, device="meta")
    with pytest.raises(BadInput, match="not on meta"):
        pool.page_views(0)


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"moonpool\[engine\]"):
        PagePool(LatentLayout(layers=1, latent_dim=2), 1)
