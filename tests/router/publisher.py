"""A publisher of KV events on real sockets, as vLLM's: numbered messages and a replay socket."""

from __future__ import annotations

import asyncio
import struct

import msgspec
import numpy as np
import zmq
import zmq.asyncio

from moonpool.router.subscriber import END


class Publisher:
    """A PUB socket and a replay socket, numbered as vLLM's."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self.pub = context.socket(zmq.PUB)
        self.port = self.pub.bind_to_random_port("tcp://127.0.0.1")
        self.router = context.socket(zmq.ROUTER)
        self.replay_port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.ring: list[tuple[int, bytes]] = []
        self.next = 0
        self.asked: list[bytes] = []
        self.garbage: list[list[bytes]] = []
        """Frames that an answer begins with."""
        self.task = asyncio.create_task(self._answer())

    async def send(self, *events: object, heard: bool = True) -> None:
        payload = msgspec.msgpack.encode([1.0, list(events), 0])
        self.ring.append((self.next, payload))
        if heard:
            await self.pub.send_multipart([b"kv", struct.pack(">Q", self.next), payload])
        self.next += 1

    async def _answer(self) -> None:
        while True:
            who, _, start = await self.router.recv_multipart()
            self.asked.append(start)
            for frames in self.garbage:
                await self.router.send_multipart([who, b"", *frames])
            for sequence, payload in self.ring:
                if sequence >= int.from_bytes(start, "big"):
                    number = struct.pack(">Q", sequence)
                    await self.router.send_multipart([who, b"", b"kv", number, payload])
            await self.router.send_multipart([who, b"", b"", END, b""])


def stored(first: int, count: int, tokens: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> object:
    return {
        "type": "BlockStored",
        "block_hashes": list(range(100 + first, 100 + first + count)),
        "parent_block_hash": 99 + first if first else None,
        "token_ids": tokens[first * 16 : (first + count) * 16].tolist(),
        "block_size": 16,
        "medium": "GPU",
    }
