"""Several processes that gather rows of one prefix at the same time, for the sparse bench."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np

from moonpool.bench.runner import Row
from moonpool.bench.sparse_parts import KEY, connect, is_stamped
from moonpool.sparse import PrefixStore, SparseLayout

LAPS: int = 5
TIMEOUT_S: int = 120


def gather_side_by_side(address: str, layout: SparseLayout, top_k: int, count: int) -> Row:
    """Latencies of one layer's gather over all processes, and what they moved together."""
    facts = json.dumps([layout.layers, layout.entry_bytes, top_k])
    command = [sys.executable, "-m", "moonpool.bench.sparse_readers", address, facts]
    children = [
        subprocess.Popen(
            [*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for number in range(count)
    ]
    try:
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        told = [json.loads(child.communicate(timeout=TIMEOUT_S)[0]) for child in children]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    laps = np.concatenate([one["laps_us"] for one in told])
    return {
        "readers": count,
        "p50_us": float(np.percentile(laps, 50)),
        "p99_us": float(np.percentile(laps, 99)),
        "gb_per_s": sum(one["gb_per_s"] for one in told),
        "ok": all(one["ok"] for one in told),
    }


def read_many(address: str, facts: str, number: str) -> None:
    """One of several readers: gathers for a while when told, then says how long each took."""
    layers, row_bytes, top_k = json.loads(facts)
    layout = SparseLayout(layers, row_bytes)
    random = np.random.default_rng(int(number))
    with connect(address, True) as pool, PrefixStore(pool, layout).reader(KEY, "shm") as reader:
        out = np.ones((top_k, row_bytes), np.uint8)
        wanted = [
            random.choice(reader.length, top_k, replace=False).astype(np.uint32)
            for _ in range(layers)
        ]
        for layer in range(layers):  # mapped before the clock runs
            reader.gather(layer, wanted[layer], out)
        print("ready", flush=True)
        sys.stdin.readline()
        laps = [
            reader.gather(layer, wanted[layer], out).seconds
            for _ in range(LAPS)
            for layer in range(layers)
        ]
        ok = is_stamped(layout, layers - 1, wanted[-1], out)
    moved = len(laps) * top_k * row_bytes
    answer = {
        "laps_us": [lap * 1e6 for lap in laps],
        "gb_per_s": moved / sum(laps) / 1e9,
        "ok": ok,
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    read_many(*sys.argv[1:])
