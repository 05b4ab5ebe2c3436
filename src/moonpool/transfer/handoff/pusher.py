"""Carries out pushes of one session: byte ranges from the mapping, written by the engine."""

import threading
from collections.abc import Callable

import numpy as np

from moonpool.core.errors import MoonpoolError, PeerRestarted, TransferError
from moonpool.transfer.engine import Engine
from moonpool.transfer.handoff.actions import Push
from moonpool.transfer.handoff.mapping import I64, BlockMap
from moonpool.transfer.handoff.memory import KVMemory
from moonpool.transfer.handoff.messages import Hello
from moonpool.transfer.op import Op
from moonpool.transfer.peer import Peer
from moonpool.transfer.segment import RemoteSegment, Segment

Done = Callable[[bool, str], None]


class Pusher:
    """The data plane of one session, from connect() to close(). Only DONE counts as arrived: after
    any other end bytes may still be on their way to the peer."""

    def __init__(
        self,
        engine: Engine,
        memory: KVMemory,
        source: list[list[tuple[Segment, int]]],
        hello: Hello,
        push_s: float,
    ) -> None:
        self.plan = BlockMap(
            memory.layout, hello.layout, memory.stride(), hello.layers[0][0].stride
        )
        self._engine, self._memory, self._source, self._hello = engine, memory, source, hello
        self._push_s = push_s
        self._peer: Peer | None = None
        self._remote: list[list[tuple[RemoteSegment, int]]] = []

    def connect(self, timeout_s: float) -> None:
        """Blocks for the hello of the data plane. Raises TransferError."""
        hello = self._hello
        peer = self._engine.connect(hello.data, timeout_s)
        if peer.epoch != hello.data_epoch:
            peer.close()
            raise PeerRestarted(f"another process answers at {hello.data}")
        self._peer = peer
        self._remote = [
            [
                (
                    RemoteSegment(
                        peer, epoch=hello.data_epoch, region=part.region, name=f"kv.{layer}",
                        nbytes=part.nbytes, writable=True, shared=False,
                    ),
                    part.offset,
                )
                for part in parts
            ]
            for layer, parts in enumerate(hello.layers)
        ]  # fmt: skip

    def push(self, push: Push, blocks: I64, target: I64, target_first: int, done: Done) -> int:
        """Starts it; `done` is called once, from any thread. Returns the bytes asked for."""
        try:
            ranges = self.plan.ranges(blocks, target, target_first, push.first, push.last)
            ops = []
            for (near, near_at), (far, far_at) in zip(
                self._source[push.layer], self._remote[push.layer], strict=True
            ):
                ops.append(
                    self._engine.write(
                        near,
                        (ranges.source + np.uint64(near_at), ranges.lengths),
                        far,
                        (ranges.target + np.uint64(far_at), ranges.lengths),
                        deadline=self._push_s,
                        transport="tcp",
                    )
                )
        except MoonpoolError as error:
            done(False, str(error))
            return 0
        _when_all(ops, done)
        return ranges.nbytes * len(ops)

    def sums(self, blocks: I64, target: I64, target_first: int, tokens: int) -> tuple[int, ...]:
        """CRC of what was sent, one for each layer and part."""
        if target_first >= tokens:
            return ()
        ranges = self.plan.pieces(blocks, target, target_first, target_first, tokens)
        layout = self._memory.layout
        return tuple(
            self._memory.crc(layer, part, ranges.source, ranges.lengths)
            for layer in range(layout.layers)
            for part in range(layout.parts)
        )

    def close(self) -> None:
        """Ends the connection; its ops are terminal when this returns."""
        if self._peer is not None:
            self._peer.close()


def _when_all(ops: list[Op], done: Done) -> None:
    left, lock = [len(ops)], threading.Lock()

    def one(_: Op) -> None:
        with lock:
            left[0] -= 1
            last = left[0] == 0
        if last:
            bad = next((op for op in ops if not op.result.ok), None)
            done(bad is None, "" if bad is None else str(bad.error or TransferError("no reason")))

    for op in ops:
        op.add_done_callback(one)
