"""What a page weighs, from shapes alone."""

from __future__ import annotations

import pytest

from moonpool.cache import HeadsLayout, LatentLayout, local_kv_heads
from moonpool.core.errors import BadInput


@pytest.mark.parametrize("kv_heads", [8, 4, 1], ids=["MHA", "GQA", "MQA"])
@pytest.mark.parametrize(
    ("dtype", "itemsize"),
    [("float32", 4), ("float16", 2), ("bfloat16", 2), ("fp8_e4m3", 1), ("fp8_e5m2", 1)],
)
def test_bytes_of_keys_and_values(kv_heads: int, dtype: str, itemsize: int) -> None:
    layout = HeadsLayout(layers=5, kv_heads=kv_heads, head_dim=64, page_size=16, dtype=dtype)
    assert layout.bytes_of(100) == 2 * 5 * 100 * kv_heads * 64 * itemsize
    assert layout.bytes_per_page == layout.bytes_of(16)


def test_bytes_of_latents() -> None:
    layout = LatentLayout(layers=61, latent_dim=512, rope_dim=64, page_size=64)
    assert layout.bytes_of(1) == 61 * 576 * 2
    assert layout.parts == ("latent",)


def test_a_known_model() -> None:
    """LLaMA-3-70B in bfloat16: 320 KiB a token; 3.2 M tokens in a TiB."""
    layout = HeadsLayout(layers=80, kv_heads=8, head_dim=128, page_size=512)
    assert layout.bytes_per_token == 320 << 10
    assert layout.pages_in(1 << 40) * 512 == 3_355_136


def test_shapes_and_axes() -> None:
    nhd = HeadsLayout(layers=2, kv_heads=3, head_dim=4, page_size=5)
    hnd = HeadsLayout(layers=2, kv_heads=3, head_dim=4, page_size=5, order="HND", page_first=True)
    assert nhd.storage_shape(7) == (2, 2, 7, 5, 3, 4)
    assert hnd.storage_shape(7) == (7, 2, 2, 3, 5, 4)
    assert (nhd.axes, hnd.axes) == ("layer,kv,token,head,dim", "layer,kv,head,token,dim")
    assert [nhd.pages_for(tokens) for tokens in (0, 1, 5, 6)] == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("kv_heads", "ranks", "local"), [(8, 1, 8), (8, 4, 2), (8, 8, 1), (2, 8, 1), (1, 4, 1)]
)
def test_heads_of_a_rank(kv_heads: int, ranks: int, local: int) -> None:
    assert local_kv_heads(kv_heads, ranks) == local


@pytest.mark.parametrize(("kv_heads", "ranks"), [(8, 3), (3, 8), (0, 1), (1, 0)])
def test_heads_that_do_not_divide(kv_heads: int, ranks: int) -> None:
    with pytest.raises(BadInput, match="evenly"):
        local_kv_heads(kv_heads, ranks)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"dtype": "bfloat"}, "Did you mean 'bfloat16'"),
        ({"order": "DNH"}, "NHD or HND"),
        ({"layers": 0}, "layers is at least 1"),
        ({"kv_heads": 0}, "heads is at least 1"),
        ({"page_size": 0}, "not 0"),
    ],
)
def test_what_is_no_layout(wrong: dict[str, object], says: str) -> None:
    right: dict[str, object] = {"layers": 1, "kv_heads": 1, "head_dim": 1}
    with pytest.raises(BadInput, match=says):
        HeadsLayout(**(right | wrong))  # type: ignore[arg-type]
