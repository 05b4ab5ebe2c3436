"""Asks workers how they are, and new ones who they are."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from moonpool.core.errors import BadFrame, MoonpoolError, Unreachable
from moonpool.router.base import Worker
from moonpool.router.http.fetch import Fetched, fetch
from moonpool.router.service.desk import Desk, Seat
from moonpool.router.service.health import Condition

ANSWER_BYTES_MAX = 1 << 20
_VLLM_BLOCKS = re.compile(rb'^vllm:cache_config_info\{[^}\n]*\bnum_gpu_blocks="(\d{1,12})"', re.M)


class _Card(msgspec.Struct):
    """What /v1/models says of a model; engines add fields of their own."""

    id: str = ""
    parent: str | None = None
    """Of a LoRA adapter, the model."""
    max_model_len: int | None = None
    block_size: int | None = None
    kv_blocks: int | None = None


class _Cards(msgspec.Struct):
    data: list[_Card] = []


_cards = msgspec.json.Decoder(_Cards)


class Prober:
    """Looks at every worker when it is due; a slow one does not delay another."""

    def __init__(
        self, desk: Desk, *, path: str, timeout_s: float, headers: Mapping[str, str]
    ) -> None:
        self._desk = desk
        self._path = path
        self._timeout_s = timeout_s
        self._headers = dict(headers)
        self._looking: dict[str, asyncio.Task[None]] = {}

    def sweep(self, now: float) -> None:
        """Start the probes that are due; call it a few times a second."""
        for seat in self._desk.due(now):
            if seat.id not in self._looking:
                task = asyncio.get_running_loop().create_task(self.look(seat))
                self._looking[seat.id] = task
                task.add_done_callback(partial(self._looked, seat.id))

    def _looked(self, name: str, task: asyncio.Task[None]) -> None:
        self._looking.pop(name, None)

    def close(self) -> None:
        for task in self._looking.values():
            task.cancel()

    async def look(self, seat: Seat) -> None:
        """One probe."""
        try:
            status = await self._status(seat.worker.url + self._path)
            if status >= 400 and status != 404:
                self._desk.ill(seat, f"{self._path} answers {status}")
                return
            worker = seat.worker
            if seat.health.condition in (Condition.JOINING, Condition.DOWN):
                worker = await self._introduced(seat.spec.worker)
        except Unreachable as error:
            refused = isinstance(error.__cause__, ConnectionRefusedError)
            self._desk.ill(seat, str(error), surely=refused)
        except MoonpoolError as error:
            self._desk.ill(seat, str(error))
        else:
            self._desk.well(seat, worker)

    async def _status(self, url: str) -> int:
        return (await self._get(url)).status

    async def _introduced(self, worker: Worker) -> Worker:
        """The worker with what it says of itself where the configuration says nothing."""
        if worker.model and worker.context_tokens_max and worker.block_size:
            return worker
        answer = await self._get(worker.url + "/v1/models")
        if answer.status != 200:
            return worker
        try:
            cards = _cards.decode(answer.body).data
        except msgspec.DecodeError as error:
            raise BadFrame(f"{worker.url}/v1/models is not understood: {error}") from None
        plain = [card for card in cards if not card.parent]
        named = [card for card in plain if card.id == worker.model] or plain
        if not named:
            return worker
        card = named[0]
        found: dict[str, Any] = {
            "model": worker.model or card.id,
            "adapters": frozenset(card.id for card in cards if card.parent),
            "context_tokens_max": worker.context_tokens_max or card.max_model_len or 0,
            "block_size": worker.block_size or card.block_size or 0,
            "kv_blocks_max": worker.kv_blocks_max or card.kv_blocks or await self._blocks(worker),
        }
        with contextlib.suppress(MoonpoolError):
            return msgspec.structs.replace(worker, **found)
        raise BadFrame(f"{worker.url}/v1/models says what makes no sense: {found}")

    async def _blocks(self, worker: Worker) -> int:
        """Blocks of a rank's cache as vLLM's metrics tell them; 0: they do not, and a worker is no
        worse for it."""
        if not worker.publishes_events:
            return 0
        try:
            answer = await self._get(worker.url + "/metrics")
        except MoonpoolError:
            return 0
        told = _VLLM_BLOCKS.findall(answer.body) if answer.status == 200 else ()
        return min(map(int, told), default=0)

    async def _get(self, url: str) -> Fetched:
        return await fetch(
            url, headers=self._headers, timeout_s=self._timeout_s, bytes_max=ANSWER_BYTES_MAX
        )
