"""KV events into the router's index: decoded alone, and followed over ZeroMQ on loopback."""

from __future__ import annotations

import asyncio
import statistics
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from moonpool.bench.runner import Row, Settings, make_row
from moonpool.core.errors import DeadlineExceeded, missing_extra
from moonpool.router import Brain, BrainConfig, Worker
from moonpool.router.subscriber import EventSubscriber

BENCH: Final = "router"
BLOCK: Final = 16
EVENT_BLOCKS: Final = 16
EVENTS: Final = 64
MESSAGES: Final = 256
BLOCKS: Final = EVENT_BLOCKS * EVENTS * MESSAGES
JOINED_S: Final = 0.3
DEADLINE_S: Final = 60.0


def rows(settings: Settings) -> Iterator[Row]:
    """Blocks a second; the sender is a thread of the same process."""
    messages = [_message(number) for number in range(MESSAGES)]
    case = f"events of {EVENT_BLOCKS} blocks, {EVENTS} a message"
    decoded = [_decoded(messages) for _ in range(settings.rounds)]
    yield make_row(BENCH, f"{case}, decoded alone", len(decoded), _figures(decoded))
    followed = [asyncio.run(_followed(messages)) for _ in range(settings.rounds)]
    yield make_row(BENCH, f"{case}, over ZeroMQ", len(followed), _figures(followed))


def _figures(seconds: list[float]) -> Row:
    return {"blocks_per_s": BLOCKS / statistics.median(seconds), "ok": True}


def _message(number: int) -> bytes:
    """Each event a prompt of its own: vLLM's map form, token ids as of a large vocabulary."""
    rng = np.random.default_rng(number)
    events = []
    for event in range(EVENTS):
        first = (number * EVENTS + event) * EVENT_BLOCKS + 1
        events.append(
            {
                "type": "BlockStored",
                "block_hashes": [(first + i) * 0x9E37_79B9_7F4A % 2**63 for i in range(16)],
                "parent_block_hash": None,
                "token_ids": rng.integers(0, 150_000, EVENT_BLOCKS * BLOCK).tolist(),
                "block_size": BLOCK,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
            }
        )
    return msgspec.msgpack.encode([1.0, events, 0])


def _brain() -> Brain:
    brain = Brain(BrainConfig(index_bytes_max=1 << 30))
    brain.add_worker(Worker(id="w", model="m", block_size=BLOCK))
    return brain


def _decoded(messages: list[bytes]) -> float:
    brain = _brain()
    start = time.perf_counter()
    for message in messages:
        brain.apply_message("w", message)
    seconds = time.perf_counter() - start
    assert len(brain.index) == BLOCKS, "a block of the bench was not stored"
    return seconds


async def _followed(messages: list[bytes]) -> float:
    try:
        import zmq
    except ImportError:
        raise missing_extra("the bench of followed events", "router") from None
    brain = _brain()
    context: Any = zmq.Context()
    publisher = context.socket(zmq.PUB)
    publisher.setsockopt(zmq.SNDHWM, 0)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    subscriber = EventSubscriber(brain, "w", f"tcp://127.0.0.1:{port}")
    subscriber.start()
    await asyncio.sleep(JOINED_S)  # what is sent before the subscription arrives is lost
    sender = threading.Thread(target=_send, args=(publisher, messages))
    start = time.perf_counter()
    sender.start()
    try:
        while len(brain.index) < BLOCKS:
            if time.perf_counter() - start > DEADLINE_S:
                raise DeadlineExceeded(f"{len(brain.index)} of {BLOCKS} blocks came")
            await asyncio.sleep(0.001)
        return time.perf_counter() - start
    finally:
        sender.join()
        await subscriber.close()
        context.destroy(linger=0)


def _send(publisher: Any, messages: list[bytes]) -> None:
    for number, message in enumerate(messages):
        publisher.send_multipart([b"kv", struct.pack(">Q", number), message])
