"""Rows gathered by a GPU from mapped host memory, beside contiguous copies of pinned memory.

    python -m bench.gpu_gather [--gib N] [--rounds N]

Needs a CUDA device, torch built for it and triton; else it says what is missing and ends with
status 0. It ends within five minutes: what was not measured by then is said to be, and counts as
failed. Every gather is compared with the CPU path's bytes. Rows as
of the other benches; `of_pinned` is the gather's rate over that of one pinned copy of as many bytes
(wanted: at least 0.6), `rows_one_by_one` the same rows by a copy each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from moonpool.bench.runner import Row, machine_row, make_row
from moonpool.sparse import BF16_ROW_BYTES, FP8_ROW_BYTES, SparseLayout, SparsePool, SparseReader
from moonpool.sparse.gpu import GpuRows, why_no_gpu

BENCH: Final = "gpu-gather"
COUNTS: Final = (256, 2048, 16384, 32768)
ONE_BY_ONE: Final = 2048
KEY: Final = "bench"
SECONDS_MAX: Final = 240


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.gpu_gather")
    parser.add_argument("--gib", type=float, default=4, help="rows in mapped memory (4)")
    parser.add_argument("--rounds", type=int, default=20, help="medians are over so many (20)")
    arguments = parser.parse_args()
    missing = why_no_gpu()
    if missing:
        print(f"skipped: {missing}")
        return
    ends = time.monotonic() + SECONDS_MAX
    print(json.dumps(machine_row()))
    ok = True
    for row_bytes in (FP8_ROW_BYTES, BF16_ROW_BYTES):
        for row in rows(row_bytes, int(arguments.gib * 2**30), arguments.rounds, ends):
            ok = ok and row["ok"] is True
            print(json.dumps(row), flush=True)
    raise SystemExit(0 if ok else 1)


def rows(row_bytes: int, nbytes: int, rounds: int, ends: float) -> Iterator[Row]:
    """One size of rows: each number of rows a gather."""
    import torch

    tokens = nbytes // row_bytes // 64 * 64
    layout = SparseLayout(1, row_bytes, index_bytes=0)
    random = np.random.default_rng(7)
    with tempfile.TemporaryDirectory(prefix="moonpool-gpu-", dir="/dev/shm") as folder:
        with SparsePool.create(Path(folder) / "rows", layout, tokens) as pool:
            with pool.writer(KEY, tokens) as writer:
                for start in range(0, tokens, 1 << 18):
                    count = min(1 << 18, tokens - start)
                    some = random.integers(0, 256, (count, row_bytes), np.uint8)
                    writer.put(0, start, some)
                writer.seal(tokens)
            with pool.reader(KEY) as reader, GpuRows(reader) as gpu:
                for count in COUNTS:
                    case = f"{row_bytes}-{count}-{gpu.mode}"
                    if time.monotonic() > ends:
                        late = f"not measured: {SECONDS_MAX} s were over"
                        yield make_row(BENCH, case, 0, {"ok": False, "left_out": late})
                        continue
                    figures = _figures(torch, reader, gpu, count, rounds, random)
                    facts = {"device": torch.cuda.get_device_name()}
                    yield make_row(BENCH, case, rounds, {**figures, **facts})


def _figures(
    torch: Any, reader: SparseReader, gpu: GpuRows, count: int, rounds: int, random: Any
) -> Row:
    row_bytes = reader.layout.entry_bytes
    out = torch.empty((count, row_bytes), dtype=torch.uint8, device="cuda")
    pinned = torch.ones((count, row_bytes), dtype=torch.uint8).pin_memory()
    wanted = np.empty((count, row_bytes), np.uint8)
    positions = random.choice(reader.length, count, replace=False)
    gather_s = _median(torch, rounds, lambda: gpu.gather(0, positions, out))
    reader.gather(0, positions, wanted)
    ok = bool(np.array_equal(out.cpu().numpy(), wanted))
    pinned_s = _median(torch, rounds, lambda: out.copy_(pinned, non_blocking=True))
    figures: Row = {
        "gb_per_s": count * row_bytes / gather_s / 1e9,
        "p50_us": gather_s * 1e6,
        "pinned_gb_per_s": count * row_bytes / pinned_s / 1e9,
        "of_pinned": pinned_s / gather_s,
        "ok": ok,
    }
    if count <= ONE_BY_ONE:

        def one_by_one() -> None:
            for row in range(count):
                out[row].copy_(pinned[row], non_blocking=True)

        each_s = _median(torch, 3, one_by_one)
        figures["rows_one_by_one_gb_per_s"] = count * row_bytes / each_s / 1e9
    return figures


def _median(torch: Any, rounds: int, call: Callable[[], object]) -> float:
    """Seconds until the device is done, one call first to warm up."""
    laps = []
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        laps.append(time.perf_counter() - start)
    return statistics.median(laps[1:])


if __name__ == "__main__":
    main()
