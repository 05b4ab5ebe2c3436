"""Dynamo's SelectionService (of the ai-dynamo-runtime wheel, in process) on the work of `moonpool
bench router`'s events over ZeroMQ: a publisher in vLLM's format, 64 events of 16 blocks a message.

Nothing but an answer tells that all has arrived: the overlap of the last event's tokens is asked
for until it is there. Both of our CPUs are the service's, which has threads of its own.
"""

import asyncio
import contextlib
import random
import statistics
import struct
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, Final

from bench.peers.rounds import Case, Rival, Title, main
from bench.rows import Row

BLOCK: Final = 16
EVENT_BLOCKS: Final = 16
EVENTS: Final = 64
MESSAGES: Final = 256  # as our own bench
BLOCKS: Final = EVENT_BLOCKS * EVENTS * MESSAGES
JOINED_S: Final = 0.5
POLL_S: Final = 0.002
DEADLINE_S: Final = 60.0


@contextlib.contextmanager
def started() -> Iterator[Rival]:
    """Messages made; each call is a service of its own."""
    ingest = _Ingest()
    case = f"events of {EVENT_BLOCKS} blocks, {EVENTS} a message, over ZeroMQ"
    yield Rival([Case(case, ingest.call, ingest.arrived, extra=ingest.figures)], [])


class _Ingest:
    """Each call: a new service joins, all messages are sent to it."""

    def __init__(self) -> None:
        made = [_message(number) for number in range(MESSAGES)]
        self._messages = [message for message, _ in made]
        self._first, self._last = made[0][1][0], made[-1][1][-1]
        self._seconds: list[float] = []
        self._whole = True

    def call(self) -> None:
        asyncio.run(self._run())

    def arrived(self) -> bool:
        """The last event's blocks were all there, and the first one's."""
        return self._whole

    def figures(self) -> Row:
        median = statistics.median(self._seconds)
        self._seconds.clear()
        return {"blocks_per_s": round(BLOCKS / median)}

    async def _run(self) -> None:
        import zmq
        from dynamo._core import SelectionService

        context: Any = zmq.Context()
        publisher = context.socket(zmq.PUB)
        publisher.setsockopt(zmq.SNDHWM, 0)
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        service = SelectionService()
        try:
            await service.upsert_worker(
                {
                    "worker_id": 1,
                    "model_name": "m",
                    "endpoint": "http://127.0.0.1:1",
                    "block_size": BLOCK,
                    "data_parallel_start_rank": 0,
                    "data_parallel_size": 1,
                    "kv_events_endpoints": {0: f"tcp://127.0.0.1:{port}"},
                    "max_num_batched_tokens": 8192,
                    "total_kv_blocks": 2 * BLOCKS,
                }
            )
            await asyncio.sleep(JOINED_S)
            sender = threading.Thread(target=_send, args=(publisher, self._messages))
            start = time.perf_counter()
            sender.start()
            while await _held(service, self._last) < EVENT_BLOCKS:
                if time.perf_counter() - start > DEADLINE_S:
                    self._whole = False
                    break
                await asyncio.sleep(POLL_S)
            self._seconds.append(time.perf_counter() - start)
            sender.join()
            self._whole &= await _held(service, self._first) == EVENT_BLOCKS
        finally:
            service.shutdown()
            context.destroy(linger=0)


async def _held(service: Any, tokens: list[int]) -> int:
    """Blocks that the service says its one worker has of the prompt."""
    found = await service.overlap_scores({"model_name": "m", "token_ids": tokens})
    return sum(int(worker["device_blocks"]) for worker in found["workers"])


def _message(number: int) -> tuple[bytes, list[list[int]]]:
    """A message as of our own bench, and each event's tokens."""
    import msgpack

    draw = random.Random(number)
    events, prompts = [], []
    for event in range(EVENTS):
        first = (number * EVENTS + event) * EVENT_BLOCKS + 1
        tokens = [draw.randrange(150_000) for _ in range(EVENT_BLOCKS * BLOCK)]
        prompts.append(tokens)
        events.append(
            {
                "type": "BlockStored",
                "block_hashes": [(first + i) * 0x9E37_79B9_7F4A % 2**63 for i in range(16)],
                "parent_block_hash": None,
                "token_ids": tokens,
                "block_size": BLOCK,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
            }
        )
    return msgpack.packb([1.0, events, 0]), prompts


def _send(publisher: Any, messages: list[bytes]) -> None:
    for number, message in enumerate(messages):
        publisher.send_multipart([b"", struct.pack(">Q", number), message])


if __name__ == "__main__":
    main(Title("router", "dynamo", version("ai-dynamo-runtime")), started)
