"""What a training-free indexer chooses in a real language model, on a real text, and what it costs
in quality: `python -m moonpool.bench.sparse_language --model smollm2 --text FILE`.

The text's first tokens are a prompt, computed densely; the next ones are fed step by step, once
densely and once with each indexer. A choice is one layer's and KV head's; a trace keeps that of
every KV head of some layers, the answer's own tokens among them, and as a hint what the prompt's
last token would choose.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from moonpool.bench.runner import Row, make_row
from moonpool.core.engine_section import EngineConfig
from moonpool.core.errors import BadInput
from moonpool.sparse.layout import U32
from moonpool.sparse.traces import BUFFERS, TopKTrace, save_trace, summed_up

if TYPE_CHECKING:
    from moonpool.engine.model.runner import Runner
    from moonpool.engine.model.weights import Checkpoint

BENCH: Final = "sparse-language"
INDEXERS: Final = ("quest", "oracle", "recency")
BLOCK: Final = 16
_KEPT_LAYERS: Final = 6


class Plan(NamedTuple):
    tokens: int
    steps: int
    top_k: int


class Read(NamedTuple):
    """Of the steps: f32[steps] nats of the text's next token, the likeliest token i64[steps]."""

    nats: NDArray[np.float32]
    best: NDArray[np.int64]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m moonpool.bench.sparse_language")
    parser.add_argument("--model", required=True, help="a directory, a .gguf file or 'smollm2'")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=4096, help="of the prompt")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--top-k", type=int, default=128)
    parser.add_argument("--traces", type=Path, help="folder for traces, NAME-INDEXER.npz")
    chosen = parser.parse_args(arguments)
    from moonpool.engine.model.weights import load
    from moonpool.engine.model_files import locate, name_of
    from moonpool.engine.tokenizer import load_tokenizer

    path, name = locate(chosen.model), name_of(chosen.model)
    text = load_tokenizer(path).encode(chosen.text.read_text(encoding="utf-8"))
    plan = Plan(chosen.tokens, chosen.steps, chosen.top_k)
    for row, trace in compare(load(path), text, plan):
        row["model"] = name
        print(json.dumps(row), flush=True)
        if chosen.traces is not None and trace is not None:
            save_trace(chosen.traces / f"{name}-{row['case']}.npz", trace)
    return 0


def compare(
    checkpoint: Checkpoint, text: Sequence[int], plan: Plan
) -> list[tuple[Row, TopKTrace | None]]:
    """A row for dense attention and one for each indexer, with its trace. Raises BadInput."""
    needed = plan.tokens + plan.steps + 1
    if len(text) < needed:
        raise BadInput(f"the text has {len(text)} tokens, {needed} are wanted")
    dense, _ = _read(checkpoint, text, plan, "none")
    found: list[tuple[Row, TopKTrace | None]] = [(_row("dense", plan, dense, dense), None)]
    for indexer in INDEXERS:
        read, trace = _read(checkpoint, text, plan, indexer)
        row = _row(indexer, plan, read, dense)
        if trace is not None:
            row |= {"summary": msgspec.to_builtins(summed_up(trace)._asdict())}
        found.append((row, trace))
    return found


def _row(case: str, plan: Plan, read: Read, dense: Read) -> Row:
    figures = {
        **plan._asdict(),
        "nats": float(read.nats.mean()),
        "dense_nats": float(dense.nats.mean()),
        "same_best": float((read.best == dense.best).mean()),
    }
    return make_row(BENCH, case, 1, figures)


def _read(
    checkpoint: Checkpoint, text: Sequence[int], plan: Plan, indexer: str
) -> tuple[Read, TopKTrace | None]:
    from moonpool.engine.model.assembly import assemble, layout_of
    from moonpool.engine.model.attention.sparse import SparseDecoding

    config = EngineConfig(
        block_size=BLOCK,
        chunk_tokens=4 * BLOCK,
        decode_rows=1,
        sparse=indexer,  # type: ignore[arg-type]
        top_k=plan.top_k if indexer != "none" else 0,
    )
    shape = checkpoint.config
    pages = -(-(plan.tokens + plan.steps) // BLOCK)
    page_bytes = layout_of(shape, BLOCK, shape.dtype).bytes_per_page
    core = assemble(checkpoint, msgspec.structs.replace(config, kv_memory=pages * page_bytes)).core
    runner, table = core.runner, np.arange(pages, dtype=np.int32)
    kept = range(0, shape.layers, max(1, shape.layers // _KEPT_LAYERS))
    choices = _Choices(list(kept))
    decoding = runner.decoding
    try:
        for start in range(0, plan.tokens - 1, config.chunk_tokens):
            end = min(start + config.chunk_tokens, plan.tokens - 1)
            runner.prefill(text[start:end], runner.span(table, start, end), None, last=False)
        at = plan.tokens - 1
        if isinstance(decoding, SparseDecoding):
            decoding.on_choice = choices.take
            hint = _hint(runner, decoding, choices, text, table, plan)
        _decode(runner, text, table, at)
        choices.clear()
        nats, best = [], []
        for at in range(plan.tokens, plan.tokens + plan.steps):
            logits = _decode(runner, text, table, at)
            nats.append(float(np.logaddexp.reduce(logits) - logits[text[at + 1]]))
            best.append(int(logits.argmax()))
    finally:
        runner.close()
    read = Read(np.array(nats, np.float32), np.array(best, np.int64))
    if not isinstance(decoding, SparseDecoding):
        return read, None
    return read, TopKTrace(plan.tokens + plan.steps, choices.columns(plan.steps), hint)


class _Choices:
    """Of some layers, as they come."""

    def __init__(self, layers: list[int]) -> None:
        self._layers = layers
        self._taken: list[U32] = []

    def take(self, layer: int, positions: U32) -> None:
        if layer in self._layers:
            self._taken.append(positions)

    def clear(self) -> list[U32]:
        taken, self._taken = self._taken, []
        return taken

    def columns(self, steps: int) -> U32:
        """u32[steps, layers * heads, k]."""
        return np.stack(self._taken).reshape(steps, -1, self._taken[0].shape[-1])


def _decode(
    runner: Runner, text: Sequence[int], table: NDArray[np.int32], at: int
) -> NDArray[np.float32]:
    logits: NDArray[np.float32] = runner.decode([text[at]], [runner.span(table, at, at + 1)])[
        0
    ].numpy()
    return logits


def _hint(
    runner: Runner,
    decoding: object,
    choices: _Choices,
    text: Sequence[int],
    table: NDArray[np.int32],
    plan: Plan,
) -> U32:
    """u32[layers * heads, m]: what the prompt's last token chooses with k, 2k, ... rows, those
    that it chooses with fewer first."""
    from moonpool.engine.model.attention.sparse import SparseDecoding

    assert isinstance(decoding, SparseDecoding)
    order: list[list[int]] = []
    for times in BUFFERS:
        decoding.top_k = min(times * plan.top_k, plan.tokens - 1)
        _decode(runner, text, table, plan.tokens - 1)
        columns = np.concatenate(choices.clear())
        order = order or [[] for _ in columns]
        for known, column in zip(order, columns.tolist(), strict=True):
            known += sorted(set(column) - set(known), reverse=True)
            del known[times * plan.top_k :]
    decoding.top_k = plan.top_k
    return np.array(order, np.uint32)


if __name__ == "__main__":
    sys.exit(main())
