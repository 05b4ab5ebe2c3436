"""Time to first token through a prefill/decode split, beside the prefill engine's own:
`python -m tests.engines.vllm_pd_ttft MODEL [tokens] [tries]`, a folder with a model of vLLM's.

Two engines on this machine, one core each; tries alternate, each with a prompt nobody has seen. One
JSON line.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.engines.vllm_pd_rig import PDEngine, Split


def main() -> None:
    model = Path(sys.argv[1])
    tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    tries = int(sys.argv[3]) if len(sys.argv) > 3 else 10
    changes: dict[str, Any] = {
        "dtype": "auto",
        "skip_tokenizer_init": True,
        "max_model_len": tokens + 64,
        "max_num_batched_tokens": tokens + 64,
        "num_gpu_blocks_override": 8 * (tokens // 32 + 2),
    }
    with tempfile.TemporaryDirectory() as folder:
        prefill = PDEngine(Path(folder) / "p", model, "kv_producer", **changes)
        decode = PDEngine(Path(folder) / "d", model, "kv_consumer", **changes)
        prefill.ready(), decode.ready()
        alone, split = measure(prefill, decode, tokens, tries)
        counts = decode.counts()["counts"]
        version = prefill.version
        prefill.end()
        decode.end()
    mine, theirs = statistics.median(alone), statistics.median(split)
    line = {
        "bench": "vllm_handoff",
        "case": f"{tokens} tokens",
        "subject": model.name,
        "version": f"vllm {version}",
        "rounds": tries,
        "prefill_ttft_ms": round(mine * 1000, 1),
        "decode_ttft_ms": round(theirs * 1000, 1),
        "ratio": round(theirs / mine, 3),
        "arrived": counts["decode_arrived"],
    }
    print(json.dumps(line))


def measure(
    prefill: PDEngine, decode: PDEngine, tokens: int, tries: int
) -> tuple[list[float], list[float]]:
    """Seconds to the first token: of the prefill engine asked alone, and at the decode engine."""
    draw = random.Random(7)
    alone: list[float] = []
    split: list[float] = []
    for number in range(tries + 2):
        prompt = [draw.randrange(3, 259) for _ in range(tokens)]
        prefill.add(f"a{number}", prompt, max_tokens=1)
        mine = float(prefill.answer(f"a{number}")["ttft"])
        prompt = [draw.randrange(3, 259) for _ in range(tokens)]
        one = Split(prefill, decode, prompt, max_tokens=4).send()
        theirs = float(one.answer()["ttft"])
        one.prefilled()
        time.sleep(0.1)
        if number >= 2:  # the first two warm both engines up
            alone.append(mine)
            split.append(theirs)
    return alone, split


if __name__ == "__main__":
    main()
