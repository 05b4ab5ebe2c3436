"""How long `transformers` takes for the same prompt: a slow engine would make any cache look good.

Runs as a process of its own, so that neither library warms the other: one JSON object on stdin, one
on stdout.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

SLOW_S: Final = 10.0
"""A warm-up that takes longer is taken as the measurement: so long do processors without bfloat16
arithmetic imitate it, and what a first call costs on top does not matter then."""
TIMEOUT_S: Final = 300.0


class Reference(NamedTuple):
    """Median times in ms by element type, or why there are none."""

    ttft_ms: Mapping[str, float]
    reason: str | None
    compute: str = ""
    """The type that the engine calculates in on this processor, of those asked for."""

    @property
    def same_ms(self) -> float | None:
        """In the engine's own type."""
        return self.ttft_ms.get(self.compute)


def measure(
    model: str,
    messages: Sequence[Mapping[str, str]],
    *,
    dtypes: Sequence[str],
    threads: int,
    rounds: int,
) -> Reference:
    """Medians of `rounds` prefills of the same prompt in each type, after a warm-up. The first
    type is that of the engine's weights and cache."""
    wanted = {
        "model": model,
        "messages": messages,
        "dtypes": dtypes,
        "threads": threads,
        "rounds": rounds,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "moonpool.cli.demo.reference"],
            input=json.dumps(wanted),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return Reference({}, f"transformers was not done within {TIMEOUT_S:.0f} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Reference({}, f"transformers could not be measured: {last}")
    answer = json.loads(done.stdout)
    return Reference(answer["ttft_ms"], answer["reason"], answer["compute"])


def run(wanted: Mapping[str, Any]) -> Reference:
    """In the process of its own."""
    try:
        import transformers
    except ImportError:
        return Reference({}, "transformers is not installed")
    import torch

    from moonpool.engine.model.assembly import compute_type
    from moonpool.engine.model_files import locate
    from moonpool.engine.tokenizer import load_tokenizer

    torch.set_num_threads(wanted["threads"])
    path = locate(wanted["model"])
    transformers.logging.set_verbosity_error()
    prompt = torch.tensor([load_tokenizer(path).encode_chat(wanted["messages"])])
    model = _model(path)
    found = {}
    for dtype in wanted["dtypes"]:
        model = model.to(getattr(torch, dtype))
        found[dtype] = _median_ms(model, prompt, wanted["rounds"])
    compute = compute_type(wanted["dtypes"][0], "auto", torch.device("cpu"))
    return Reference(found, None, str(compute).removeprefix("torch."))


def _median_ms(model: Any, prompt: Any, rounds: int) -> float:
    import torch

    times: list[float] = []
    with torch.inference_mode():
        while len(times) <= rounds:  # the first is the warm-up
            start = time.perf_counter()
            logits = model(input_ids=prompt, use_cache=True, logits_to_keep=1).logits
            int(logits[0, -1].argmax())
            times.append(time.perf_counter() - start)
            if times[0] > SLOW_S:
                return times[0] * 1e3
    return statistics.median(times[1:]) * 1e3


def _model(path: Path) -> Any:
    """The same weights in transformers' own Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from moonpool.engine.model.weights import load

    config, weights = load(path)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocabulary_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.inner_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context_tokens,
            rope_theta=config.rope_theta,
            rms_norm_eps=config.norm_eps,
            tie_word_embeddings=config.tied,
        )
    )
    model.load_state_dict(weights, strict=not config.tied)
    return model.eval()


if __name__ == "__main__":
    print(json.dumps(run(json.load(sys.stdin))._asdict()))
