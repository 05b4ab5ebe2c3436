"""Follows one worker's KV events over ZeroMQ, as vLLM and SGLang publish them: the I/O around Feed.

PUB/SUB frames are topic, sequence (8 bytes, big endian), payload. The replay socket takes an empty
frame and the first sequence wanted, and answers empty, topic, sequence, payload for each message it
still has, the last one with the sequence -1.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from moonpool.core.errors import BadInput
from moonpool.core.zeromq import import_zmq
from moonpool.router.accounts import REPAIRS_MAX, Accounts
from moonpool.router.feed import Act, Feed, Step
from moonpool.router.index import Applied, Message

if TYPE_CHECKING:
    from moonpool.router.brain import Brain

END: Final = b"\xff" * 8
REPLAY_TIMEOUT_S: Final = 5.0
QUEUE_MESSAGES_MAX: Final = 100_000
REPLAY_MESSAGES_MAX: Final = 1_000_000
REPLAY_BYTES_MAX: Final = 1 << 30
MESSAGE_BYTES_MAX: Final = 1 << 28  # who sends a longer one is cut off
TURN_MESSAGES_MAX: Final = 32
DIGEST_S: Final = 60.0


class EventSubscriber:
    """Applies what one rank of a worker publishes to the brain, until `close`.

    `endpoint` is its PUB socket ('tcp://host:port'), `replay` its ROUTER socket or empty. Every
    `digest_s` seconds (0: never) a publisher that keeps an account of its cache is asked for it,
    and any other for what did not come by itself.
    Messages that are none are counted in `malformed` and passed over. Raises MissingExtra without
    pyzmq.
    """

    def __init__(
        self,
        brain: Brain,
        worker_id: str,
        endpoint: str,
        *,
        replay: str = "",
        rank: int = 0,
        topic: str = "",
        on_applied: Callable[[], None] | None = None,
        digest_s: float = 0.0,
    ) -> None:
        self.feed = Feed(replays=bool(replay))
        self.accounts = Accounts(digest_s or DIGEST_S)
        self.malformed = 0
        self._brain = brain
        self._worker_id = worker_id
        self._rank = rank
        self._endpoint = endpoint
        self._replay = replay
        self._topic = topic.encode()
        self._on_applied = on_applied
        self._digest_s = digest_s
        self._zmq = import_zmq("following KV events over ZeroMQ", "router")
        self._context: Any = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._wished = b""
        self._wishing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Subscribe, and ask for what was published before. Needs a running loop.

        Raises BadInput for an endpoint that no socket connects to.
        """
        self._context = self._zmq.asyncio.Context()
        socket = self._context.socket(self._zmq.SUB)
        socket.setsockopt(self._zmq.RCVHWM, QUEUE_MESSAGES_MAX)
        socket.setsockopt(self._zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        socket.setsockopt(self._zmq.SUBSCRIBE, self._topic)
        try:
            socket.connect(self._endpoint)
        except self._zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise BadInput(f"events of {self._worker_id}: {self._endpoint}: {error}") from None
        self._run(self.feed.start())
        self._begin(self._follow(socket))
        if self._digest_s > 0 and self._replay:
            self._begin(self._look(self._digest_s))

    async def close(self) -> None:
        """Nothing is applied any more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)

    async def _follow(self, socket: Any) -> None:
        # Messages are read where ZeroMQ has them: they are large, and a copy of each is felt.
        ready = self._zmq.Socket.shadow(socket)
        while True:
            self._receive(await socket.recv_multipart(copy=False))
            # What lies there already needs no turn of the loop each, but others get theirs.
            for _ in range(TURN_MESSAGES_MAX):
                try:
                    frames = ready.recv_multipart(self._zmq.NOBLOCK, copy=False)
                except self._zmq.Again:
                    break
                self._receive(frames)
            else:
                await asyncio.sleep(0)

    def _receive(self, frames: list[Any]) -> None:
        if len(frames) != 3 or len(frames[1]) != 8:
            self.malformed += 1
        else:
            self._run(self.feed.receive(_number(frames[1].bytes), frames[2].buffer))

    def _run(self, steps: list[Step]) -> None:
        for step in steps:
            if step.act is Act.APPLY:
                self._apply(step.message)
            elif step.act is Act.FORGET:
                self._forget()
                self.accounts.restarted()
            else:
                self._begin(self._ask_from(step.sequence))

    def _apply(self, message: Message) -> None:
        try:
            left = self.accounts.walks_left(asyncio.get_running_loop().time())
            applied = self._take(message, left)
        except BadInput:
            self.malformed += 1
        else:
            self.accounts.walked(applied.walks)
            if applied.accounts or applied.renewed_ranges:
                self._account(applied)
        if self._on_applied is not None:
            self._on_applied()

    def _take(self, message: Message, walks_max: int) -> Applied:
        return self._brain.apply_message(self._worker_id, message, walks_max)

    def _forget(self) -> None:
        self._brain.intake.forget(self._worker_id, self._rank)

    def _account(self, applied: Applied) -> None:
        if wish := self.accounts.heard(applied):
            self._wish(wish)
        problems = self._problems()
        if self.accounts.gave_up:
            problems[f"drift {self._rank}"] = (
                f"worker {self._worker_id}, rank {self._rank}: its own account of its cache differs"
                f" from what its events say, also after {REPAIRS_MAX} repairs; hits are predicted"
                " wrong for it"
            )
        else:
            problems.pop(f"drift {self._rank}", None)

    def _problems(self) -> dict[str, str]:
        """Of the worker, as it is shown."""
        return self._brain.fleet.member(self._worker_id).problems

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _look(self, every_s: float) -> None:
        """Ask for an account now and then, or at least for what is missing."""
        while True:
            await asyncio.sleep(every_s)
            if not self.accounts.offered:
                self._run(self.feed.look())
            elif (self._wishing is None or self._wishing.done()) and (wish := self.accounts.due()):
                self._wish(wish)

    def _wish(self, wish: bytes) -> None:
        """Ask for an account or some ranges: one question at a time, and of those that come
        meanwhile the last one. Old messages that are replayed may want any number of them."""
        self._wished = wish
        if self._wishing is None or self._wishing.done():
            self._wishing = self._begin(self._ask_wishes())

    async def _ask_wishes(self) -> None:
        """What is asked for comes in the stream, where there is such a thing. Of a publisher that
        does not answer nothing is concluded."""
        while self._wished:
            wish, self._wished = self._wished, b""
            _, end = await self._ask(wish)
            if end is not None:
                self.accounts.answered(end)

    async def _ask_from(self, sequence: int) -> None:
        """Replay from `sequence` on; what did not come by the deadline counts as lost."""
        found, _ = await self._ask(struct.pack(">Q", sequence))
        if self.feed.waiting:  # not, when the publisher restarted meanwhile
            self._run(self.feed.replayed(found))
        self._say_whether_heard()

    def _say_whether_heard(self) -> None:
        problems = self._problems()
        if self.feed.counts.unheard and not self.feed.counts.messages:
            problems[f"unheard {self._rank}"] = (
                f"worker {self._worker_id}, rank {self._rank}: nothing comes from {self._endpoint};"
                f" only {self._replay} knows of its events, asked every {self._digest_s:g} s."
                " Does the worker listen there? vLLM does so for 'tcp://*:PORT' and 'ipc://PATH';"
                " an endpoint with an address it dials"
            )
        else:
            problems.pop(f"unheard {self._rank}", None)

    async def _ask(self, question: bytes) -> tuple[list[tuple[int, bytes]], bytes | None]:
        """Messages that came as an answer, and what stood beside its end; None: it did not end."""
        found: list[tuple[int, bytes]] = []
        found_bytes = 0
        socket = self._context.socket(self._zmq.DEALER)
        socket.setsockopt(self._zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        try:
            with contextlib.suppress(TimeoutError, self._zmq.ZMQError):
                socket.connect(self._replay)
                async with asyncio.timeout(REPLAY_TIMEOUT_S):
                    await socket.send_multipart([b"", question])
                    for number in range(1, REPLAY_MESSAGES_MAX + 1):
                        if found_bytes >= REPLAY_BYTES_MAX:
                            break
                        if number % TURN_MESSAGES_MAX == 0:  # what lies there is no wait
                            await asyncio.sleep(0)
                        frames = await socket.recv_multipart()
                        if len(frames) < 2 or frames[-2] == END:
                            return found, frames[-1]
                        if len(frames[-2]) != len(END):
                            self.malformed += 1
                            continue
                        found.append((_number(frames[-2]), frames[-1]))
                        found_bytes += len(frames[-1])
        finally:
            socket.close(linger=0)
        return found, None


class PoolSubscriber(EventSubscriber):
    """The same of the pool, which holds blocks for every worker (`moonpool admin --events`)."""

    def __init__(self, brain: Brain, endpoint: str, *, replay: str = "") -> None:
        super().__init__(brain, "the pool", endpoint, replay=replay)
        self.problems: dict[str, str] = {}

    def _problems(self) -> dict[str, str]:
        return self.problems

    def _take(self, message: Message, walks_max: int) -> Applied:
        return self._brain.intake.apply_pool_message(message, walks_max)

    def _forget(self) -> None:
        self._brain.intake.forget_pool()


def _number(frame: bytes) -> int:
    return int.from_bytes(frame, "big")
