"""Follows the pool's events and publishes them over ZeroMQ as vLLM publishes its own.

    PUB      topic "", number (8 bytes, big endian, from 0), payload
    ROUTER   asked ["", first number wanted]: ["", topic, number, payload] of each message kept,
             then ["", "", 8 x 0xff, ""]

The oldest messages kept are always a whole account of the pool: whoever asks from 0 knows
everything afterwards. When the master asks to re-base (a new term, or this follower was too slow),
when a node came or went, and when more than `kept_max` messages are kept, a new account begins.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from moonpool.core.errors import MoonpoolError
from moonpool.core.zeromq import bound_socket, import_zmq
from moonpool.pool.aio import AsyncPool
from moonpool.pool.kv_events import Form, KvEvent, Translator, encode

log = logging.getLogger("moonpool.events")

TOPIC: Final = b""
END: Final = b"\xff" * 8
QUEUE_MESSAGES_MAX: Final = 100_000
MESSAGE_EVENTS_MAX: Final = 1024
WAIT_S: Final = 10.0
AGAIN_S: Final = 0.5
LIST_KEYS: Final = 4096


class KvSettings(NamedTuple):
    """What is published, and where: port 0 takes any free one."""

    host: str = "127.0.0.1"
    port: int = 0
    replay_port: int = 0
    form: Form = "map"
    prefix: bytes = b""
    block_size: int = 16
    kept_max: int = 4096


class KvPublisher:
    """`start` binds, `run` follows until cancelled, `close` frees the ports."""

    def __init__(self, pool: AsyncPool, settings: KvSettings) -> None:
        self.translator = Translator(settings.prefix, settings.block_size)
        self.accounts = 0  # times the whole pool was told
        self.why_not = ""  # why the pool cannot be followed at the moment
        self.events = self.replay = ""
        self._pool = pool
        self._settings = settings
        self._zmq = import_zmq("publishing the pool's events over ZeroMQ", "admin")
        self._kept: deque[tuple[bytes, bytes]] = deque()
        self._next = 0
        self._context: Any = None

    @property
    def messages(self) -> int:
        """Published so far."""
        return self._next

    def start(self) -> None:
        """Raises BadConfig when a port is taken. Needs a running loop."""
        self._context = self._zmq.asyncio.Context()
        try:
            self._pub, self.events = bound_socket(
                *(self._zmq, self._context, self._zmq.PUB, QUEUE_MESSAGES_MAX),
                *(self._settings.host, self._settings.port),
            )
            self._router, self.replay = bound_socket(
                *(self._zmq, self._context, self._zmq.ROUTER, 4 * self._settings.kept_max + 4),
                *(self._settings.host, self._settings.replay_port),
            )
        except BaseException:
            self._context.destroy(linger=0)
            raise

    async def run(self) -> None:
        """Follow, and answer those who ask; ends when cancelled."""
        await asyncio.gather(self._keep(self._follow), self._keep(self._answer))

    async def _keep(self, work: Callable[[], Awaitable[None]]) -> None:
        """Whatever ends the work, it is begun anew: for followers a silence is no answer."""
        while True:
            try:
                await work()
            except MoonpoolError as error:
                self.why_not = str(error)
            except Exception as error:
                # Our bug, or a library's. A new account makes good what was not told.
                log.exception("publishing the pool's events: begun anew")
                self.why_not = f"{type(error).__name__}: {error}"
            await asyncio.sleep(AGAIN_S)

    def close(self) -> None:
        if self._context is not None:
            self._context.destroy(linger=0)

    async def _follow(self) -> None:
        """From a whole account on, until the pool cannot be reached."""
        position, told_whole = await self._tell_all()
        while True:
            batch = await self._pool.events(position, wait_s=WAIT_S, timeout_s=WAIT_S + 5.0)
            self.why_not = ""
            told = self.translator.translate(batch.events)
            full = len(self._kept) > told_whole + self._settings.kept_max
            if batch.rebase or told.stale or full:
                position, told_whole = await self._tell_all()
                continue
            position = batch.position
            await self._send(told.events)

    async def _tell_all(self) -> tuple[tuple[int, int], int]:
        """A new account: from where its changes are to be followed, and messages it took.

        The position is asked for before the list: what changes meanwhile is in the list or not,
        and told again afterwards either way."""
        position = (await self._pool.events((0, 0))).position
        events: list[KvEvent] = self.translator.snapshot([])
        keys: list[bytes] = []
        async for one in self._pool.list(self._settings.prefix):
            keys.append(one.key)
            if len(keys) == LIST_KEYS:
                events += await self._readable(keys)
                keys = []
        events += await self._readable(keys)
        self._kept.clear()
        self.accounts += 1
        await self._send(events)
        return position, len(self._kept)

    async def _readable(self, keys: list[bytes]) -> list[KvEvent]:
        """Blocks that a node which is heard has; those of others are told when it is back."""
        there = await self._pool.exists(keys) if keys else []
        found = [key for key, here in zip(keys, there, strict=True) if here]
        return self.translator.snapshot(found)[1:]

    async def _send(self, events: list[KvEvent]) -> None:
        for start in range(0, len(events), MESSAGE_EVENTS_MAX):
            some = events[start : start + MESSAGE_EVENTS_MAX]
            payload = encode(some, time.time(), self._settings.form)
            number = struct.pack(">Q", self._next)
            self._next += 1
            self._kept.append((number, payload))
            await self._pub.send_multipart([TOPIC, number, payload])

    async def _answer(self) -> None:
        while True:
            frames = await self._router.recv_multipart()
            if len(frames) == 3 and len(frames[2]) == 8:
                asker, first = frames[0], frames[2]
                for number, payload in [one for one in self._kept if one[0] >= first]:
                    await self._router.send_multipart([asker, b"", TOPIC, number, payload])
                await self._router.send_multipart([asker, b"", b"", END, b""])
