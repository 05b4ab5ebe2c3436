"""What the cache gained and lost, told over ZeroMQ as vLLM tells it; the engine waits for nobody.

    PUB      topic "", number (8 bytes, big endian, from 0), payload [time, events, 0]
    ROUTER   asked ["", first number wanted]: ["", topic, number, payload] of each message kept,
             then ["", "", 8 x 0xff, ""]

    asked ["", "digest"], or ["", "ranges" and 32 bytes]: ["", "", 8 x 0xff, "accounts"], and an
             account of the cache, or what it holds of these ranges, comes in the next message

The oldest message kept is always a whole account of the cache (AllBlocksCleared, then all that is
stored): whoever asks from 0 knows everything afterwards, however long the engine has been running.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from moonpool.cache.events import AllBlocksCleared, KvEvent, encode_batch
from moonpool.cache.manager import CacheManager
from moonpool.core.clock import Clock
from moonpool.core.engine_section import EngineConfig
from moonpool.core.zeromq import bound_socket, import_zmq

TOPIC: Final = b""
END: Final = b"\xff" * 8
DIGEST: Final = b"digest"
RANGES: Final = b"ranges"
RANGES_BYTES: Final = 32
ACCOUNTS: Final = b"accounts"
QUEUE_MESSAGES_MAX: Final = 100_000
"""A subscriber further behind loses messages, and asks for them again."""


class EventPublisher:
    """Of one cache, from now on. `publish` is for the engine's thread, the rest for its owner.

    Raises BadConfig when a port is taken, MissingExtra without pyzmq.
    """

    def __init__(self, cache: CacheManager, config: EngineConfig, clock: Clock) -> None:
        self._zmq = import_zmq("publishing KV events (engine.events)", "engine")
        self._cache = cache
        self._clock = clock
        self._kept_max = config.events_kept
        self._kept: deque[tuple[bytes, bytes]] = deque()
        self._keeping = threading.Lock()
        self._next = 0
        self._wants_digest = False
        self._wanted_ranges = 0
        self.on_wish: Callable[[], None] = _nothing
        """Called, in another thread, when somebody asked for what the next `publish` will tell."""
        self._context = self._zmq.Context()
        try:
            self._pub, self.events = bound_socket(
                *(self._zmq, self._context, self._zmq.PUB, QUEUE_MESSAGES_MAX),
                *(config.events_host, config.events_port),
            )
            """Where they are published, as 'tcp://host:port'."""
            # Twice an answer: what has been read gives its place back by halves of the queue only.
            self._router, self.replay = bound_socket(
                *(self._zmq, self._context, self._zmq.ROUTER, 2 * config.events_kept + 4),
                *(config.events_host, config.replay_port),
            )
            """Where messages that were missed are asked for."""
        except BaseException:
            self._context.destroy(linger=0)
            raise
        everything = encode_batch(cache.tree.snapshot_events(), clock.wall_ms() / 1000)
        self._send(everything, everything)
        self._thread = threading.Thread(target=self._answer, name="moonpool-replay", daemon=True)
        self._thread.start()

    @property
    def messages(self) -> int:
        """Published so far."""
        return self._next

    def publish(self) -> None:
        """What happened since the last call, and what was asked for, in one message; nothing, none.
        Never blocks."""
        events = self._cache.take_events()
        renewed, account = self._wanted()
        if not (events or renewed or account):
            return
        if len(self._kept) >= self._kept_max:
            events = self._cache.tree.snapshot_events()
        if events and isinstance(events[0], AllBlocksCleared):
            with self._keeping:  # what was told before counts no more
                self._kept.clear()
        seconds = self._clock.wall_ms() / 1000
        message = encode_batch([*events, *renewed], seconds)
        told = encode_batch([*events, *renewed, *account], seconds) if account else message
        self._send(message, told)

    def close(self) -> None:
        """Nothing is published any more; both ports are free afterwards."""
        self._pub.close(linger=0)
        self._context.term()  # ends the thread's wait
        self._thread.join()

    def _wanted(self) -> tuple[list[KvEvent], list[KvEvent]]:
        """Ranges told anew, and an account."""
        with self._keeping:
            digest, self._wants_digest = self._wants_digest, False
            ranges, self._wanted_ranges = self._wanted_ranges, 0
        tree = self._cache.tree
        renewed = tree.range_events(ranges.to_bytes(RANGES_BYTES, "little")) if ranges else []
        return renewed, [tree.digest_event()] if digest else []

    def _send(self, payload: bytes, told: bytes) -> None:
        """`told` is what subscribers get, `payload` what is kept: no account, it costs who reads it
        a walk, and is asked for again where it was missed."""
        number = struct.pack(">Q", self._next)
        with self._keeping:
            self._kept.append((number, payload))
        self._next += 1
        self._pub.send_multipart([TOPIC, number, told], self._zmq.NOBLOCK)

    def _answer(self) -> None:
        try:
            while True:
                frames = self._router.recv_multipart()
                if len(frames) == 3 and len(frames[2]) == 8:
                    self._replay(frames[0], frames[2])
                elif len(frames) == 3 and self._wish(frames[2]):
                    self._router.send_multipart([frames[0], b"", b"", END, ACCOUNTS])
                    self.on_wish()
        except self._zmq.ContextTerminated:
            pass
        finally:  # or `close` would wait for ever
            self._router.close(linger=0)

    def _replay(self, asker: bytes, first: bytes) -> None:
        """An asker that does not read loses what its queue does not hold."""
        with self._keeping:
            wanted = [message for message in self._kept if message[0] >= first]
        for number, payload in wanted:
            self._router.send_multipart([asker, b"", TOPIC, number, payload])
        self._router.send_multipart([asker, b"", b"", END, b""])

    def _wish(self, question: bytes) -> bool:
        """Note what the engine's thread shall tell; of several that ask at once, once. False: that
        is no question."""
        ranges = question.removeprefix(RANGES)
        with self._keeping:
            if question == DIGEST:
                self._wants_digest = True
            elif question.startswith(RANGES) and len(ranges) == RANGES_BYTES:
                self._wanted_ranges |= int.from_bytes(ranges, "little")
            else:
                return False
        return True


def _nothing() -> None:
    """Nobody is to be woken."""
