"""Which attention is taken and why, and the lists that FlashInfer's kernels are given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moonpool.engine import Engine
from moonpool.engine.model.attention.base import Span
from moonpool.engine.model.attention.choice import choose, why_not_flashinfer
from moonpool.engine.model.attention.flashinfer import page_lists
from moonpool.engine.model.attention.sdpa import SdpaAttention
from tests.engine.steps import config_of

BF16, F32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("device", "stored", "compute", "dim", "says"),
    [
        ("cpu", BF16, BF16, 64, "for CUDA, this is cpu"),
        ("cuda", BF16, F32, 64, "one half-width type, not torch.bfloat16 and torch.float32"),
        ("cuda", F32, F32, 64, "one half-width type"),
        ("cuda", BF16, BF16, 80, "no kernels for heads of 80"),
    ],
)
def test_why_it_is_not_flashinfer(
    device: str, stored: torch.dtype, compute: torch.dtype, dim: int, says: str
) -> None:
    assert says in why_not_flashinfer(device, stored, compute, dim)


def test_an_engine_says_what_it_uses(tiny: Path) -> None:
    with Engine.load(tiny, config_of()) as engine:
        assert engine.attention == "sdpa: FlashInfer is for CUDA, this is cpu"
    with Engine.load(tiny, config_of(attention="sdpa")) as engine:
        assert engine.attention == "sdpa: engine.attention says so"


def test_page_lists() -> None:
    """Two tokens of one sequence behind five, and one of another that fills its page."""
    one = Span(torch.tensor([7, 2, 9]), 5, 7)
    other = Span(torch.tensor([4, 1]), 7, 8)
    lists = page_lists([one, other], 4)
    assert lists.rows.tolist() == [0, 2, 3]
    assert lists.pages.tolist() == [0, 2, 4]
    assert lists.indices.tolist() == [7, 2, 4, 1]
    assert lists.last.tolist() == [3, 4]
    assert {part.dtype for part in lists} == {torch.int32}


@pytest.mark.skipif(
    bool(why_not_flashinfer("cuda" if torch.cuda.is_available() else "cpu", BF16, BF16, 64)),
    reason="needs CUDA and the package flashinfer",
)
def test_flashinfer_attends_as_torch_does() -> None:
    torch.manual_seed(0)
    storage = torch.randn(6, 1, 2, 16, 3, 64, device="cuda").to(BF16)
    spans = [Span(torch.tensor([5, 0, 3], device="cuda"), 20, 40)]
    q = torch.randn(20, 9, 64, device="cuda").to(BF16)
    k, v = (torch.randn(20, 3, 64, device="cuda").to(BF16) for _ in range(2))
    chosen = choose(storage.clone(), 9, BF16, "auto")
    assert chosen.name == "flashinfer"
    ours = chosen.attention.plan(spans, 20)(0, q, k, v)
    torchs = SdpaAttention(storage, 9, BF16).plan(spans, 20)(0, q, k, v)
    torch.testing.assert_close(ours, torchs, atol=2e-2, rtol=2e-2)
