"""One request on its way through the engine: steps in, text out, aborted when nobody listens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import NamedTuple

from moonpool.engine.detokenizer import TextStream
from moonpool.engine.engine import Engine
from moonpool.engine.request import Request, Reuse, Step
from moonpool.engine.server.exchange import Exchange, Gone
from moonpool.engine.server.metrics import Metrics


class Piece(NamedTuple):
    """What one step added; `finish` on the last one."""

    text: str
    tokens: list[int]
    finish: str | None = None


class Generation:
    """Iterate `pieces`; afterwards the counts of usage stand in its attributes."""

    def __init__(
        self, engine: Engine, request: Request, stream: TextStream, metrics: Metrics
    ) -> None:
        self._engine = engine
        self._request = request
        self._stream = stream
        self._metrics = metrics
        self.reuse = Reuse()
        self.completion_tokens = 0

    @property
    def prompt_tokens(self) -> int:
        return len(self._request.prompt)

    async def pieces(self, exchange: Exchange) -> AsyncGenerator[Piece, None]:
        """Raises Gone when the client left, and what the engine raises: EngineBusy, BadInput."""
        last = time.monotonic()
        async with aclosing(self._steps(exchange)) as steps:
            async for step in steps:
                now = time.monotonic()
                self._count(step, now - last)
                last = now
                piece = self._piece(step)
                yield piece
                if piece.finish is not None:
                    self._metrics.ended(piece.finish)
                    return

    def _piece(self, step: Step) -> Piece:
        tokens = list(step.tokens)
        # The token that ends an answer is counted, and has no text.
        text = "".join(self._stream.push(t) for t in tokens if t not in self._request.end_ids)
        finish = step.finish
        if finish is not None:
            text += self._stream.finish()
        if self._stream.stopped:
            finish = "stop"
        return Piece(text, tokens, finish)

    async def _steps(self, exchange: Exchange) -> AsyncGenerator[Step, None]:
        queue: asyncio.Queue[Step | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def on_step(step: Step) -> None:
            with suppress(RuntimeError):  # the server is down: nobody listens any more
                loop.call_soon_threadsafe(queue.put_nowait, step)

        number = await self._engine.enter(self._request, on_step)
        watch = asyncio.create_task(exchange.until_gone())
        watch.add_done_callback(lambda _: queue.put_nowait(None))
        over = False
        try:
            while not over:
                step = await queue.get()
                if step is None:
                    raise Gone
                over = step.finish is not None
                if step.error is not None:
                    raise step.error
                yield step
        finally:
            watch.cancel()
            if not over:
                self._engine.abort(number)

    def _count(self, step: Step, seconds: float) -> None:
        if not step.tokens:
            return
        if not self.completion_tokens:
            self.reuse = step.reuse
            self._metrics.first_token(seconds, self.prompt_tokens, step.reuse)
            self._metrics.generated(len(step.tokens), None)
        else:
            self._metrics.generated(len(step.tokens), seconds)
        self.completion_tokens += len(step.tokens)
