"""Records what Dynamo's SelectionService decides, for `tests/router/test_dynamo_decisions.py`.

    python -m bench.peers.dynamo_decisions tests/golden/dynamo_decisions.json

Seeded steps in several configurations: prompts that share prefixes, first tokens, ends of requests,
blocks stored and removed by the workers' events. Before each decision every worker's cost is asked
for by pinned questions that book nothing; the service tells costs in its log alone, to three
digits where it was pinned. Dynamo draws among equal costs, so another record has other choices.
"""

import asyncio
import json
import os
import random
import re
import struct
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

BLOCK: Final = 16
MODEL: Final = "m"
SPREAD: Final = 4096  # token i of segment [tag, count] is tag * 4096 + i
JOINED_S: Final = 0.5
POLL_S: Final = 0.002
DEADLINE_S: Final = 10.0
ENVIRONMENT: Final = {
    "overlap_score_credit": "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT",
    "overlap_score_credit_decay": "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",
    "prefill_load_scale": "DYN_ROUTER_PREFILL_LOAD_SCALE",
    "decode_active_request_weight": "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT",
    "host_cache_hit_weight": "DYN_ROUTER_HOST_CACHE_HIT_WEIGHT",
    "router_assume_kv_reuse": "DYN_ROUTER_ASSUME_KV_REUSE",
}
_PINNED = re.compile(r'Selected pinned worker: .*?logit: ([0-9.]+),.*?request_id="([^"]+)"')
_CHOSEN = re.compile(r'Selected worker .*?request_id="([^"]+)".*?logit=([0-9.]+)')

Segments = list[list[int]]


class Plan(NamedTuple):
    """What a run is made from; `config` is what it has besides the defaults."""

    seed: int
    workers: int
    requests: int
    config: dict[str, Any]
    two_tiers: bool = False
    """Workers keep a part of what they have in host memory, and never remove any."""


PLANS: Final = [
    Plan(1, 5, 60, {}),
    Plan(2, 3, 30, {"overlap_score_credit_decay": 0.5, "decode_active_request_weight": 0.75}),
    Plan(3, 4, 30, {"prefill_load_scale": 2.0}),
    Plan(4, 4, 20, {"router_assume_kv_reuse": False}),
    Plan(5, 3, 20, {"overlap_score_credit": 0.5}),
    Plan(6, 4, 25, {"host_cache_hit_weight": 0.5}, two_tiers=True),
]


def tokens_of(prompt: Segments) -> list[int]:
    return [tag * SPREAD + i for tag, count in prompt for i in range(count)]


class _Run:
    """One service with a publisher for each worker, and the steps so far."""

    def __init__(self, plan: Plan) -> None:
        import zmq
        from dynamo._core import SelectionService

        self._draw = random.Random(plan.seed)
        self._two_tiers = plan.two_tiers
        self._workers = range(1, plan.workers + 1)
        self._context: Any = zmq.Context()
        self._publishers: dict[int, Any] = {}
        self._sent = dict.fromkeys(self._workers, 0)
        self._service = SelectionService()
        self._names: dict[tuple[int, ...], int] = {}
        self._waiting: list[tuple[int, int, Segments]] = []
        self._decoding: list[int] = []
        self._cached: list[tuple[int, Segments]] = []
        self._tails = 100
        self.steps: list[dict[str, Any]] = []

    async def play(self, requests: int) -> None:
        try:
            for worker in self._workers:
                await self._join(worker)
            await asyncio.sleep(JOINED_S)
            for worker in self._workers:  # all have told events from the start
                await self._store(worker, [[90 + worker, 2 * BLOCK]])
            for number in range(requests):
                await self._ask(number)
                while self._waiting and self._draw.random() < 0.45:
                    await self._first_token()
                while self._decoding and self._draw.random() < 0.3:
                    await self._free()
                if self._cached and not self._two_tiers and self._draw.random() < 0.15:
                    await self._remove()
        finally:
            self._service.shutdown()
            self._context.destroy(linger=0)

    async def _join(self, worker: int) -> None:
        import zmq

        publisher = self._publishers[worker] = self._context.socket(zmq.PUB)
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        await self._service.upsert_worker(
            {
                "worker_id": worker,
                "model_name": MODEL,
                "endpoint": f"http://127.0.0.1:{worker}",
                "block_size": BLOCK,
                "data_parallel_start_rank": 0,
                "data_parallel_size": 1,
                "kv_events_endpoints": {0: f"tcp://127.0.0.1:{port}"},
                "max_num_batched_tokens": 8192,
                "total_kv_blocks": 10_000,
            }
        )

    def _prompt(self) -> Segments:
        """One of four system prompts, a document of some length, a tail of its own or none."""
        draw = self._draw
        prompt = [[draw.randrange(1, 5), 16 * draw.choice((2, 8))]]
        if draw.random() < 0.7:
            prompt.append([draw.randrange(10, 16), draw.choice((64, 100, 160, 250))])
        if draw.random() < 0.6:
            self._tails += 1
            prompt.append([self._tails, draw.randrange(1, 120)])
        return prompt

    async def _ask(self, number: int) -> None:
        prompt = self._prompt()
        question = {"model_name": MODEL, "token_ids": tokens_of(prompt)}
        for worker in self._workers:
            pin = {"worker_id": worker, "dp_rank": 0}
            name = f"{number}-{worker}"
            await self._service.select(question | {"selection_id": name, "pinned_worker": pin})
        told = await self._service.select_and_reserve(question | {"selection_id": str(number)})
        worker = told["worker_id"]
        self.steps.append({"ask": prompt, "id": number, "worker": worker})
        self._waiting.append((number, worker, prompt))

    async def _first_token(self) -> None:
        which = self._draw.randrange(len(self._waiting))
        number, worker, prompt = self._waiting.pop(which)
        await self._service.prefill_complete(str(number))
        self.steps.append({"first": number})
        self._decoding.append(number)
        await self._store(worker, prompt)

    async def _free(self) -> None:
        number = self._decoding.pop(self._draw.randrange(len(self._decoding)))
        await self._service.free_reservation(str(number))
        self.steps.append({"free": number})

    async def _store(self, worker: int, prompt: Segments) -> None:
        """The worker has all whole blocks of the prompt now, and says so."""
        tokens = tokens_of(prompt)
        hashes = self._hashes(tokens)
        on_device = len(hashes)
        if self._two_tiers:
            on_device = self._draw.randrange(len(hashes) + 1)
        self.steps.append({"store": prompt, "worker": worker, "device": on_device})
        self._cached.append((worker, prompt))
        events = []
        for medium, first, end in (
            ("GPU", 0, on_device),
            ("CPU_PINNED", on_device, len(hashes)),
        ):
            if first < end:
                events.append(
                    {
                        "type": "BlockStored",
                        "block_hashes": hashes[first:end],
                        "parent_block_hash": hashes[first - 1] if first else None,
                        "token_ids": tokens[first * BLOCK : end * BLOCK],
                        "block_size": BLOCK,
                        "lora_id": None,
                        "medium": medium,
                        "lora_name": None,
                    }
                )
        await self._send(worker, events, tokens, len(hashes))

    async def _remove(self) -> None:
        """The end of a prompt leaves a worker's cache: blocks that no other prompt there needs."""
        worker, prompt = self._cached.pop(self._draw.randrange(len(self._cached)))
        tokens = tokens_of(prompt)
        hashes = self._hashes(tokens)
        others = [self._hashes(tokens_of(other)) for at, other in self._cached if at == worker]
        needed = sum(any(block in other for other in others) for block in hashes)
        held = await self._held(worker, tokens)
        if needed >= held:
            return
        keep = self._draw.randrange(needed, held)
        event = {"type": "BlockRemoved", "block_hashes": hashes[keep:held][::-1], "medium": "GPU"}
        self.steps.append({"remove": prompt, "worker": worker, "blocks": [keep, held]})
        await self._send(worker, [event], tokens, keep)

    def _hashes(self, tokens: list[int]) -> list[int]:
        """The engine's names of the prompt's blocks: numbers of prefixes."""
        ends = range(BLOCK, len(tokens) + 1, BLOCK)
        return [self._names.setdefault(tuple(tokens[:end]), len(self._names) + 1) for end in ends]

    async def _send(
        self, worker: int, events: list[dict[str, Any]], tokens: list[int], held: int
    ) -> None:
        """Returns when the service has taken it."""
        import msgpack

        body = msgpack.packb([1.0, events, 0])
        number = struct.pack(">Q", self._sent[worker])
        self._sent[worker] += 1
        self._publishers[worker].send_multipart([b"", number, body])
        deadline = time.monotonic() + DEADLINE_S
        while (found := await self._held(worker, tokens)) != held:
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"worker {worker} holds {found} blocks instead of {held}: {events}"
                )
            await asyncio.sleep(POLL_S)

    async def _held(self, worker: int, tokens: list[int]) -> int:
        found = await self._service.overlap_scores({"model_name": MODEL, "token_ids": tokens})
        blocks = {one["worker_id"]: int(one["host_pinned_blocks"]) for one in found["workers"]}
        return blocks[worker]


def record(plan: Plan) -> list[dict[str, Any]]:
    """The steps of one run."""
    for name, variable in ENVIRONMENT.items():
        os.environ.pop(variable, None)
        if name in plan.config:
            os.environ[variable] = str(plan.config[name]).lower()
    run = _Run(plan)
    asyncio.run(run.play(plan.requests))
    return run.steps


def costs_in(log: str) -> dict[str, float]:
    """Of each question the chosen worker's, by its id."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log)
    pinned = {name: float(logit) for logit, name in _PINNED.findall(plain)}
    return pinned | {name: float(logit) for name, logit in _CHOSEN.findall(plain)}


def main(path: Path) -> None:
    runs = []
    ours = os.dup(2)
    for plan in PLANS:
        with tempfile.TemporaryFile("w+") as log:
            os.dup2(log.fileno(), 2)
            try:
                steps = record(plan)
            finally:
                os.dup2(ours, 2)
            log.seek(0)
            costs = costs_in(log.read())
        for step in steps:
            if "ask" in step:
                pinned = range(1, plan.workers + 1)
                step["cost"] = costs[str(step["id"])]
                step["costs"] = [costs[f"{step['id']}-{worker}"] for worker in pinned]
        runs.append(({"config": plan.config, "workers": plan.workers}, steps))
    told = {
        "peer": f"ai-dynamo-runtime {version('ai-dynamo-runtime')}",
        "command": f"python -m bench.peers.dynamo_decisions {path}",
        "tokens": f"token i of segment [tag, count] is tag * {SPREAD} + i",
        "block_size": BLOCK,
    }
    heads = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in told.items()]
    bodies = []
    for head, steps in runs:
        lines = ",\n".join(f"   {json.dumps(step)}" for step in steps)
        bodies.append(f'  {json.dumps(head)[:-1]}, "steps": [\n{lines}\n  ]}}')
    text = ",\n".join([*heads, ' "runs": [\n' + ",\n".join(bodies) + "\n ]"])
    path.write_text("{\n" + text + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
