"""The engine's face: requests in, tokens out, from any thread or event loop.

One thread computes; everybody else leaves orders for it. See `EngineCore` for what a step does.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from moonpool.core.clock import Clock, SystemClock
from moonpool.core.engine_section import EngineConfig
from moonpool.core.errors import EngineBusy, EngineStopped, missing_extra
from moonpool.engine.core import EngineCore
from moonpool.engine.request import Request, Step

if TYPE_CHECKING:
    from moonpool.engine.events import EventPublisher
    from moonpool.engine.model.weights import Checkpoint
    from moonpool.pool.pool import Pool

OnStep = Callable[[Step], None]
_CLOSE_S = 30.0


class Engine:
    """A model that answers. Made by `Engine.load`; close it, or use `with`.

    Thread-safe. `on_step` is called in the engine's thread: hand over and return.
    """

    def __init__(
        self,
        core: EngineCore,
        model: str,
        *,
        clock: Clock | None = None,
        own_pool: Pool | None = None,
        events: EventPublisher | None = None,
        attention: str = "",
    ) -> None:
        self.model = model
        """Fingerprint of the weights."""
        self.attention = attention
        """How it is computed, and why not faster."""
        self.pool_away = ""
        """Why the pool did not answer when the engine started; it is asked again."""
        self._core = core
        self._own_pool = own_pool
        self._events = events
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._orders: deque[Callable[[], None]] = deque()
        self._listeners: dict[int, OnStep] = {}
        self._error: BaseException | None = None
        self._closed = False
        self._woken = False
        core.tell = self._tell
        if core.link is not None:
            core.link.wake = self._wake
        if core.disagg is not None:
            core.disagg.wake = self._wake
        if events is not None:
            events.on_wish = self._wake
        self._thread = threading.Thread(target=self._serve, name="moonpool-engine", daemon=True)
        self._thread.start()

    @staticmethod
    def load(
        path: str | Path, config: EngineConfig | None = None, pool: Pool | None = None
    ) -> Engine:
        """The model at `path`: a Hugging Face directory or a GGUF file.

        `pool` is somebody else's to close; with `config.pool` the engine connects by itself, and
        starts without where nobody answers (`pool_away`).
        Raises BadModel (missing, damaged, unknown), BadConfig, MissingExtra, Refused.
        """
        try:
            import torch  # noqa: F401
        except ImportError:
            raise missing_extra("the engine", "engine") from None
        from moonpool.engine.model.weights import load

        return Engine.of(load(Path(path)), config, pool)

    @staticmethod
    def of(
        checkpoint: Checkpoint, config: EngineConfig | None = None, pool: Pool | None = None
    ) -> Engine:
        """An engine on weights in memory."""
        from moonpool.engine.model.assembly import assemble
        from moonpool.pool.connect import connect_or_later

        config = config or EngineConfig()
        own, away = None, ""
        if config.pool and pool is None:
            own, away = connect_or_later(config.pool)
        try:
            assembled = assemble(checkpoint, config, pool or own)
        except BaseException:
            if own is not None:
                own.close()
            raise
        made = Engine(
            assembled.core,
            assembled.fingerprint,
            own_pool=own,
            events=assembled.events,
            attention=assembled.attention,
        )
        made.pool_away = away
        return made

    @property
    def context_tokens(self) -> int:
        """Prompt and answer together."""
        return self._core.context_tokens

    @property
    def block_size(self) -> int:
        """Tokens of one block of keys and values."""
        return self._core.config.block_size

    @property
    def kv_blocks(self) -> int:
        """Blocks that its cache holds."""
        return self._core.cache.allocator.pages

    @property
    def handoff(self) -> str:
        """Where decode engines come for prompts computed here, "host:port"; "": nowhere."""
        return self._core.disagg.address if self._core.disagg is not None else ""

    @property
    def events(self) -> tuple[str, str]:
        """Where KV events are published and missed ones asked for, "tcp://..."; "": nowhere."""
        return (self._events.events, self._events.replay) if self._events is not None else ("", "")

    def neighbours(self) -> list[str]:
        """What other engines on the pool cannot share with this one, a line for each kind."""
        return self._core.link.neighbours() if self._core.link is not None else []

    @property
    def stopped(self) -> str:
        """Why nothing is computed any more; "" while it runs."""
        if self._error is not None:
            return f"{type(self._error).__name__}: {self._error}"
        return "it was closed" if self._closed else ""

    def submit(self, request: Request, on_step: OnStep) -> int:
        """Queue a request; its number, for `abort`. The last Step has `finish`.

        Raises BadInput for what can never be served, EngineBusy when the queue is full,
        EngineStopped.
        """
        self._core.check(request)
        answer: list[int | Exception] = []

        def order() -> None:
            try:
                number = self._core.add(request, self._clock.monotonic())
                self._listeners[number] = on_step
                answer.append(number)
            except (EngineBusy, ValueError) as error:
                answer.append(error)

        with self._changed:
            self._give(order)
            while not answer and self._error is None and not self._closed:
                self._changed.wait(1.0)
        if not answer:
            raise self._no_more()
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]

    def abort(self, number: int) -> None:
        """Forget a request and free its pages; nothing happens when it is over."""
        with self._changed:
            if self._error is None and not self._closed:
                self._give(lambda: self._core.abort(number))

    async def enter(self, request: Request, on_step: OnStep) -> int:
        """`submit` without holding up an event loop: the engine hears of it between two steps.

        Who is cancelled meanwhile leaves no request behind.
        """
        numbers: list[int] = []
        left = threading.Event()

        def enter() -> int:
            numbers.append(self.submit(request, on_step))
            if left.is_set():
                self.abort(numbers[0])
            return numbers[0]

        try:
            return await asyncio.to_thread(enter)
        except asyncio.CancelledError:
            left.set()
            for number in numbers:
                self.abort(number)
            raise

    async def generate(self, request: Request) -> AsyncIterator[Step]:
        """The Steps of an answer as they come. Leaving the loop early aborts the request.

        Raises BadInput, EngineBusy (also later, when it waited too long), EngineStopped.
        """
        loop = asyncio.get_running_loop()
        steps: asyncio.Queue[Step] = asyncio.Queue()

        def hand_over(step: Step) -> None:
            try:
                loop.call_soon_threadsafe(steps.put_nowait, step)
            except RuntimeError:  # the loop was closed: nobody listens any more
                pass

        number = await self.enter(request, hand_over)
        over = False
        try:
            while not over:
                step = await steps.get()
                over = step.finish is not None
                if step.error is not None:
                    raise step.error
                yield step
        finally:
            if not over:
                self.abort(number)

    def figures(self) -> dict[str, float]:
        """Counters and gauges by name, of one moment or nearly so."""
        published = self._events.messages if self._events is not None else 0
        return {**self._core.figures(), "event_messages": published}

    def close(self) -> None:
        """Ends the thread; requests that are not over end with EngineStopped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_S)
        if self._core.disagg is not None:
            self._core.disagg.close()
        if self._core.link is not None:
            self._core.link.close()
        if self._own_pool is not None:
            self._own_pool.close()
        if self._events is not None:
            self._events.close()
        self._core.runner.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _give(self, order: Callable[[], None]) -> None:
        """Under the lock."""
        if self._closed or self._error is not None:
            raise self._no_more()
        self._orders.append(order)
        self._changed.notify_all()

    def _no_more(self) -> EngineStopped:
        return EngineStopped(f"the engine stopped: {self.stopped or 'it was closed'}")

    def _wake(self) -> None:
        """The pool has news, or a follower of the events asks; from their threads."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def _serve(self) -> None:
        try:
            wait_s: float | None = None
            while self._obey(wait_s):
                wait_s = self._core.step(self._clock.monotonic())
                if self._events is not None:
                    self._events.publish()
        except BaseException as error:  # whoever waits must hear of it
            self._error = error
            raise
        finally:
            self._stop()

    def _obey(self, wait_s: float | None) -> bool:
        """Carry out what was ordered, waiting up to `wait_s` for it; False: closed."""
        with self._changed:
            if wait_s != 0.0:
                self._changed.wait_for(
                    lambda: self._closed or self._orders or self._woken, timeout=wait_s
                )
            self._woken = False
            orders = list(self._orders)
            self._orders.clear()
            for order in orders:
                order()
            if orders:
                self._changed.notify_all()
            return not self._closed

    def _tell(self, number: int, step: Step) -> None:
        listener = self._listeners.get(number)
        if step.finish is not None:
            self._listeners.pop(number, None)
        if listener is not None:
            listener(step)

    def _stop(self) -> None:
        error = self._no_more()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            left, self._listeners = self._listeners, {}
        for listener in left.values():
            listener(Step([], "error", error=error))
