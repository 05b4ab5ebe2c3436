"""What both shells share: a thread with an event loop, a timer for the machine, settings."""

import asyncio
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from moonpool.core.errors import Closed, MoonpoolError
from moonpool.core.sections import HandoffConfig, TransferConfig
from moonpool.transfer.engine import Engine
from moonpool.transfer.handoff import messages as m
from moonpool.transfer.handoff.actions import Release, Settled, Times
from moonpool.transfer.handoff.memory import KVMemory

TICK_MIN_S = 0.002
CLOSE_S = 5.0
Outcome = TypeVar("Outcome", Release, Settled)


def times_of(config: HandoffConfig) -> Times:
    return Times(
        beat_s=config.beat_ms / 1000,
        lease_s=config.lease_ms / 1000,
        expect_s=config.expect_ms / 1000,
        hold_s=config.hold_ms / 1000,
        push_s=config.push_ms / 1000,
        fence_s=config.fence_ms / 1000,
    )


class HandoffNode(Generic[Outcome]):
    """One rank's end. Public calls may come from any thread; they never wait for a peer.

    `name` is the engine's; `epoch` names this life of it. `notify` is called, on the node's
    thread, whenever there is something to take; it must only wake somebody.
    """

    def __init__(
        self,
        name: str,
        memory: KVMemory,
        config: HandoffConfig | None = None,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self.memory = name, memory
        self.config = config or HandoffConfig()
        self.times = times_of(self.config)
        self.epoch = secrets.randbits(63) | 1
        self.stride = memory.stride()
        self._counts: dict[str, int] = {}
        self._notify = notify
        self._outcomes: deque[Outcome] = deque()
        # Never through shared memory: what a peer has mapped cannot be withdrawn from it.
        self.engine = Engine(
            TransferConfig(
                token=self.config.token, shared_memory=False, deadline_ms=self.config.push_ms
            )
        )
        self.loop = asyncio.new_event_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="moonpool-handoff", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def now_s(self) -> float:
        return time.monotonic()

    def count(self, what: str, by: int = 1) -> None:
        self._counts[what] = self._counts.get(what, 0) + by

    @property
    def counts(self) -> dict[str, int]:
        """Sums since the start. A copy: the node goes on counting on its own thread."""
        return dict(self._counts)

    def tell(self, outcome: Outcome) -> None:
        """On the node's thread: a transfer is over here."""
        self._outcomes.append(outcome)
        self._notify()

    def take(self) -> list[Outcome]:
        """What is over since the last call: those blocks are the caller's again."""
        taken = []
        while self._outcomes:
            taken.append(self._outcomes.popleft())
        return taken

    def hello(self, **more: Any) -> m.Hello:
        """What either side says of itself."""
        return m.Hello(
            protocol=m.PROTOCOL_VERSION,
            engine=self.name,
            epoch=self.epoch,
            layout=self.memory.layout,
            beat_ms=self.config.beat_ms,
            lease_ms=self.config.lease_ms,
            **more,
        )

    def post(self, what: Callable[[], None]) -> None:
        """Runs on the node's thread, soon, in order. Raises Closed."""
        if self._closed:
            raise Closed(f"handoff {self.name}: closed")
        self.loop.call_soon_threadsafe(what)

    def ask(self, coroutine: Any, timeout_s: float = CLOSE_S) -> Any:
        """Runs a coroutine there and waits for it."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return future.result(timeout_s)

    # ---- the machine's timer ----

    def next_s(self) -> float:
        raise NotImplementedError

    def tick(self) -> None:
        raise NotImplementedError

    def arm(self) -> None:
        """Has tick() called when the machine wants it; after every step of the machine."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self.next_s()
        if due_s < float("inf"):
            self._timer = self.loop.call_later(max(TICK_MIN_S, due_s - self.now_s()), self._due)

    def _due(self) -> None:
        self._timer = None
        self.tick()

    # ---- the end ----

    async def shut(self) -> None:
        """On the node's thread: ends every session."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends every session and transfer; quiet when it returns."""
        if self._closed:
            return
        self._closed = True
        try:
            self.ask(self.shut())
        except (TimeoutError, MoonpoolError):
            self.count("unclean_closes")
        self.engine.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CLOSE_S)


def sums_of(**nodes: HandoffNode[Any] | None) -> dict[str, int]:
    """The counts of an engine's nodes, by the names given: `prefill_pushes`."""
    return {
        f"{prefix}_{name}": value
        for prefix, node in nodes.items()
        if node is not None
        for name, value in node.counts.items()
    }
