"""One vLLM engine of a prefill/decode split as a child process, driven by JSON lines. Unlike
vllm_role it goes on stepping while it is being told things: requests overlap, and are aborted.

    {"do": "add", "id": ..., "prompt": [...], "max_tokens": n, "params": kv_transfer_params}
    {"do": "abort", "id": ...}   {"do": "counts"}   {"do": "stop"}
    {"do": "freeze_at", "stage": one of vllm_pd_stages.STAGES}

Each request ends in one line; `ttft` counts from when it was read here.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from typing import Any

from tests.engines.vllm_pd_stages import freeze_at


def main() -> None:
    answers = os.fdopen(int(sys.argv[1]), "w")

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    engine = Engine(json.loads(sys.stdin.readline()), answer)
    answer(ready=True, version=engine.version, pid=os.getpid())
    orders: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(orders,), daemon=True).start()
    while True:
        try:
            order = orders.get(timeout=0 if engine.busy else 0.02)
        except queue.Empty:
            engine.step()
            continue
        name = order.pop("do")
        if name == "stop":
            engine.stop()
            return
        getattr(engine, name)(**order)


def _read(orders: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))


class Engine:
    def __init__(self, arguments: dict[str, Any], answer: Any) -> None:
        import vllm
        from vllm.config import KVTransferConfig

        self.version = vllm.__version__
        self._sampling = vllm.SamplingParams
        transfer = arguments.pop("kv_transfer_config", None)
        if transfer is not None:
            arguments["kv_transfer_config"] = KVTransferConfig(**transfer)
        self._llm = vllm.LLM(enforce_eager=True, disable_log_stats=False, **arguments)
        self._engine = self._llm.llm_engine
        self._scheduler = self._engine.engine_core.engine_core.scheduler
        self._answer = answer
        self._begun: dict[str, float] = {}
        self._first: dict[str, float] = {}
        self._internal: dict[str, str] = {}
        warm = self._sampling(temperature=0, max_tokens=1)
        self._llm.generate([{"prompt_token_ids": [5] * 300}], warm, use_tqdm=False)

    @property
    def busy(self) -> bool:
        """Something to step for: requests, or blocks that a transfer still holds."""
        return bool(self._scheduler.has_requests())

    def add(
        self,
        id: str,
        prompt: list[int],
        max_tokens: int = 8,
        params: dict[str, Any] | None = None,
        salt: str | None = None,
    ) -> None:
        extra = {"kv_transfer_params": params} if params else None
        sampling = self._sampling(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, extra_args=extra
        )
        inputs: dict[str, Any] = {"prompt_token_ids": prompt}
        if salt is not None:
            inputs["cache_salt"] = salt
        self._begun[id] = time.monotonic()
        self._engine.add_request(id, inputs, sampling)

    def abort(self, id: str) -> None:
        self._engine.abort_request([id])
        self._answer(id=id, aborted=True)

    def counts(self) -> None:
        """What the nodes counted, and vLLM's free blocks."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        pool = self._scheduler.kv_cache_manager.block_pool
        self._answer(
            counts=get_kv_transfer_group().worker.counts(),
            free=pool.get_num_free_blocks(),
            requests=len(self._scheduler.requests),
        )

    def freeze_at(self, stage: str) -> None:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        freeze_at(get_kv_transfer_group().worker, stage)
        self._answer(armed=stage)

    def step(self) -> None:
        if not self.busy:
            return
        outputs = self._engine.step()
        for output in outputs:
            name = output.request_id
            if output.outputs and output.outputs[0].token_ids:
                self._first.setdefault(name, time.monotonic())
            if output.finished:
                begun = self._begun.pop(name)
                self._answer(
                    id=name,
                    tokens=list(output.outputs[0].token_ids),
                    finish=output.outputs[0].finish_reason,
                    cached=output.num_cached_tokens,
                    ttft=self._first.pop(name, time.monotonic()) - begun,
                )
        if not outputs:
            time.sleep(0.001)  # as vLLM's own loop does when nothing could be computed

    def stop(self) -> None:
        self._engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
