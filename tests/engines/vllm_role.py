"""One vLLM engine as a child process: `python -m tests.engines.vllm_role`, driven by JSON lines.

The first line on stdin is the engine's arguments, each later one a command; each answer is one line
on the descriptor that the parent named, because vLLM prints where it likes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

WARM_UP = [5] * 40


def main() -> None:
    answers = os.fdopen(int(sys.argv[1]), "w")

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    engine = Engine(json.loads(sys.stdin.readline()))
    answer(ready=True, version=engine.version, pid=os.getpid(), start_s=engine.start_s)
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("do")
        act: Callable[..., Any] = getattr(engine, name)
        answer(result=act(**command))
        if name == "stop":
            return


class Engine:
    """An offline vLLM with an in-process engine core, so that one process is one engine."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        started = time.monotonic()
        import vllm
        from vllm.config import KVTransferConfig

        self.version = vllm.__version__
        self._sampling = vllm.SamplingParams
        transfer = arguments.pop("kv_transfer_config", None)
        if transfer is not None:
            arguments["kv_transfer_config"] = KVTransferConfig(**transfer)
        events = arguments.pop("kv_events_config", None)
        if events is not None:
            from vllm.config import KVEventsConfig

            arguments["kv_events_config"] = KVEventsConfig(**events)
        defaults: dict[str, Any] = {
            "enforce_eager": True,
            "max_model_len": 4096,
            "block_size": 32,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 4096,
            "disable_log_stats": False,
        }
        self._llm = vllm.LLM(**{**defaults, **arguments})
        self._adapters: dict[str, Any] = {}
        self.generate([WARM_UP], max_tokens=1)
        self.start_s = round(time.monotonic() - started, 1)

    def generate(
        self,
        prompts: list[list[int]],
        max_tokens: int = 8,
        salt: str | None = None,
        logprobs: int = 1,
        adapter: str | None = None,
    ) -> list[dict[str, Any]]:
        """Greedy answers; `logprobs` are those of the tokens chosen, exactly as computed. `adapter`
        is the folder of a LoRA."""
        sampling = self._sampling(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=logprobs
        )
        inputs: list[dict[str, Any]] = [{"prompt_token_ids": prompt} for prompt in prompts]
        for each in inputs:
            if salt is not None:
                each["cache_salt"] = salt
        lora = None if adapter is None else self._adapter(adapter)
        outputs = self._llm.generate(inputs, sampling, lora_request=lora, use_tqdm=False)
        return [_answer(output) for output in outputs]

    def _adapter(self, folder: str) -> Any:
        """The same request for the same folder."""
        from vllm.lora.request import LoRARequest

        if folder not in self._adapters:
            number = len(self._adapters) + 1
            self._adapters[folder] = LoRARequest(os.path.basename(folder), number, folder)
        return self._adapters[folder]

    def reset(self) -> bool:
        """Forget vLLM's own prefix cache; the pool's stays."""
        return bool(self._llm.reset_prefix_cache())

    def counters(self) -> dict[str, float]:
        """Our Prometheus counters, without prefix, as name or name/reason."""
        found: dict[str, float] = {}
        for metric in self._llm.get_metrics():
            if metric.name.startswith("vllm:moonpool_"):
                name = metric.name.removeprefix("vllm:moonpool_").removesuffix("_total")
                reason = metric.labels.get("reason")
                found[f"{name}/{reason}" if reason else name] = getattr(metric, "value", 0)
        return found

    def metrics(self, prefix: str) -> dict[str, float]:
        """vLLM's own counters."""
        return {
            metric.name: metric.value
            for metric in self._llm.get_metrics()
            if metric.name.startswith(prefix) and hasattr(metric, "value")
        }

    def stop(self) -> bool:
        self._llm.llm_engine.engine_core.shutdown()
        return True


def _answer(output: Any) -> dict[str, Any]:
    chosen = output.outputs[0]
    return {
        "tokens": list(chosen.token_ids),
        "logprobs": [next(iter(step.values())).logprob for step in chosen.logprobs or []],
        "cached": output.num_cached_tokens,
        "finish": chosen.finish_reason,
        "ttft": output.metrics.first_token_latency if output.metrics else None,
    }


if __name__ == "__main__":
    main()
