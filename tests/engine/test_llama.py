"""The arithmetic, against transformers on the same weights."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from moonpool.engine.model.assembly import assemble
from moonpool.engine.model.attention.base import Span
from moonpool.engine.model.attention.sdpa import SdpaAttention
from moonpool.engine.model.llama import Llama
from moonpool.engine.model.runner import Runner
from moonpool.engine.model.weights import load
from tests.engine.tiny import write_model

PAGE, CHUNK = 16, 32
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def reference(folder: Path) -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


class Ours:
    """One sequence on pages in no order."""

    def __init__(self, folder: Path) -> None:
        config, weights = load(folder)
        model = Llama(config, weights, compute=torch.float32, device=torch.device("cpu"))
        storage = torch.zeros(40, config.layers, 2, PAGE, config.kv_heads, config.head_dim)
        self.runner = Runner(
            model, SdpaAttention(storage, config.heads, torch.float32), decode_rows=4
        )
        self.pages = torch.randperm(40, generator=torch.Generator().manual_seed(1))

    def prefill(self, tokens: list[int]) -> torch.Tensor:
        for start in range(0, len(tokens), CHUNK):
            end = min(start + CHUNK, len(tokens))
            span = Span(self.pages, start, end)
            logits = self.runner.prefill(tokens[start:end], span, None, last=end == len(tokens))
        assert logits is not None
        return logits

    def decode(self, token: int, at: int) -> torch.Tensor:
        return self.runner.decode([token], [Span(self.pages, at, at + 1)])[0]


@pytest.mark.parametrize(
    "changes",
    [{}, {"tie_word_embeddings": True}, {"rope_scaling": LLAMA3}, {"num_key_value_heads": 4}],
    ids=["plain", "tied", "llama3", "mha"],
)
def test_logits_are_those_of_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = write_model(tmp_path / "model", dtype="float32", **changes)
    theirs, ours = reference(folder), Ours(folder)
    random = torch.Generator().manual_seed(5)
    tokens: list[int] = torch.randint(3, 259, (200,), generator=random).tolist()
    logits = ours.prefill(tokens)
    for _ in range(8):  # greedy, each token fed back
        with torch.no_grad():
            wanted = theirs(torch.tensor([tokens])).logits[0, -1]
        assert (logits - wanted).abs().max() < 2e-5  # seen: below 6e-6, on logits up to 4
        assert int(logits.argmax()) == int(wanted.argmax())
        tokens.append(int(logits.argmax()))
        logits = ours.decode(tokens[-1], len(tokens) - 1)


def test_other_rows_change_no_bit(tmp_path: Path) -> None:
    ours = Ours(write_model(tmp_path / "model", dtype="float32"))
    ours.prefill(list(range(3, 50)))
    alone = ours.decode(7, 47)
    other = Span(ours.pages[20:], 0, 1)
    own = Span(ours.pages, 47, 48)
    for spans, tokens, row in (([own, other], [7, 9], 0), ([other, other, own], [9, 9, 7], 2)):
        assert torch.equal(ours.runner.decode(tokens, spans)[row], alone)


def test_types_fit_the_processor(tiny: Path) -> None:
    from moonpool.core.engine_section import EngineConfig
    from moonpool.engine.model import assembly

    core = assemble(load(tiny), EngineConfig(kv_memory=1 << 22)).core
    assert core.figures()["pages"] == (1 << 22) // (3 * 2 * 64 * 2 * 32 * 2)
    cpu = torch.device("cpu")
    assert assembly.compute_type("float32", "auto", cpu) is torch.float32
    assert assembly.compute_type("bfloat16", "bfloat16", cpu) is torch.bfloat16
    short = assembly.has_short_arithmetic("bfloat16")
    assert (assembly.compute_type("bfloat16", "auto", cpu) is torch.bfloat16) is short
