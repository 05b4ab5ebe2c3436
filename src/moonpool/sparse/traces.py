"""What a real indexer chose, step by step: recorded, kept in a file, summed up. Pure but for files.

A summary says how often a choice comes back: from one step to the next, in a hot buffer of some
size, over the whole answer, and how much of the first step a prefill's hint foretold.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from moonpool.core.errors import BadInput, SegmentDamaged
from moonpool.sparse.hot import HotBuffer
from moonpool.sparse.layout import U32, SparseLayout
from moonpool.sparse.reader import SparseReader
from moonpool.sparse.source import local_source

BUFFERS: Final = (1, 2, 3, 4)  # rows a layer, in units of k
_ROW_BYTES: Final = 8


class TopKTrace(NamedTuple):
    """`chosen` u32[steps, layers, k], each ascending, of a prefix of `tokens` tokens; `hint`
    u32[layers, m] best first, from the prompt's last query (m 0: none)."""

    tokens: int
    chosen: U32
    hint: U32

    @property
    def top_k(self) -> int:
        return int(self.chosen.shape[2])

    @property
    def layers(self) -> int:
        return int(self.chosen.shape[1])

    @property
    def steps(self) -> int:
        return int(self.chosen.shape[0])


class TraceSummary(NamedTuple):
    """Shares of 1. `miss[i]`: of rows asked for after the first step, with an LRU buffer of
    BUFFERS[i] * k rows a layer; `hint_recall[i]`: of the first step, in the hint's BUFFERS[i] * k
    first positions (0 without a hint)."""

    tokens: int
    top_k: int
    layers: int
    steps: int
    overlap: float
    miss: tuple[float, ...]
    touched: float
    hint_recall: tuple[float, ...]


def summed_up(trace: TopKTrace) -> TraceSummary:
    k = trace.top_k
    return TraceSummary(
        trace.tokens,
        k,
        trace.layers,
        trace.steps,
        step_overlap(trace),
        tuple(miss_ratio(trace, times * k) for times in BUFFERS),
        touched_share(trace),
        tuple(hint_recall(trace, times * k) for times in BUFFERS),
    )


def step_overlap(trace: TopKTrace) -> float:
    """Of a step's choice, what the step before chose, too; mean over steps and layers."""
    common = [
        len(np.intersect1d(now, before, assume_unique=True))
        for one, other in zip(trace.chosen, trace.chosen[1:], strict=False)
        for before, now in zip(one, other, strict=True)
    ]
    return float(np.mean(common)) / trace.top_k


def touched_share(trace: TopKTrace) -> float:
    """Of the prefix's tokens, what any step chose; mean over layers."""
    touched = [len(np.unique(trace.chosen[:, layer])) for layer in range(trace.layers)]
    return float(np.mean(touched)) / trace.tokens


def miss_ratio(trace: TopKTrace, rows: int, policy: str = "lru") -> float:
    """Counted by the real hot buffer, from the second step on. Raises BadInput below k rows."""
    if rows < trace.top_k:
        raise BadInput(f"a buffer of {rows} rows is smaller than a step of {trace.top_k}")
    layout = SparseLayout(trace.layers, _ROW_BYTES, index_bytes=0)
    memory = np.zeros((trace.layers, trace.tokens, _ROW_BYTES), np.uint8)
    hot = HotBuffer(layout, min(rows, trace.tokens), policy)
    numbers, counts = np.arange(trace.layers), np.full(trace.layers, trace.top_k)
    with SparseReader(local_source(layout, memory)) as reader:
        hot.resolve_layers(reader, numbers, counts, trace.chosen[0].reshape(-1))
        first = hot.counters
        for step in trace.chosen[1:]:
            hot.resolve_layers(reader, numbers, counts, step.reshape(-1))
        last = hot.counters
    return (last.fetched - first.fetched) / max(1, last.rows - first.rows)


def hint_recall(trace: TopKTrace, rows: int) -> float:
    """Of the first step's choice, what the hint's first `rows` positions name."""
    found = [
        len(np.intersect1d(column[:rows], chosen))
        for column, chosen in zip(trace.hint, trace.chosen[0], strict=True)
    ]
    return float(np.mean(found)) / trace.top_k


def save_trace(path: Path, trace: TopKTrace) -> None:
    """Compressed: differences of neighbours, which are small."""
    steps = np.diff(trace.chosen, axis=2, prepend=0).astype(np.uint32)
    width = np.uint8 if steps.max(initial=0) < 256 else np.uint16
    if steps.max(initial=0) >= 1 << 16:
        width = np.uint32  # type: ignore[assignment]
    np.savez_compressed(
        path, tokens=np.int64(trace.tokens), steps=steps.astype(width), hint=trace.hint
    )


def load_trace(path: Path) -> TopKTrace:
    """Raises SegmentDamaged for what is no such file."""
    try:
        # Opened here: of what is no archive numpy would leave the file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            chosen = np.cumsum(archive["steps"].astype(np.uint32), axis=2, dtype=np.uint32)
            trace = TopKTrace(int(archive["tokens"]), chosen, archive["hint"].astype(np.uint32))
    except Exception as error:  # of zip, of deflate, of numpy: what damage does has no common base
        raise SegmentDamaged(f"{path} is no trace of choices: {error}") from None
    if trace.chosen.ndim != 3 or trace.chosen.size == 0 or int(trace.chosen.max()) >= trace.tokens:
        raise SegmentDamaged(f"{path} names tokens outside its prefix of {trace.tokens}")
    return trace


def packaged_trace(name: str) -> TopKTrace:
    """A trace that comes with the package: see docs/sparse.md for how each was made."""
    return load_trace(Path(str(files("moonpool.sparse") / "data" / f"{name}.npz")))
