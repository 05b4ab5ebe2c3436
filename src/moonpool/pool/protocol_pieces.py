"""Reading pieces of objects, each from its best copy; a silent copy's from the next one, too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moonpool.pool.client_state import Placement
from moonpool.pool.ports import U32, U64, Buffer, ReadRangeCall, Status
from moonpool.pool.protocol import Context, Protocol
from moonpool.pool.protocol_read import FAILURE, Reading, Wanted
from moonpool.pool.read_race import copy_whole


class Piece(Wanted):
    """`buffer` is to be filled from `offset` of an object. `status`: of the read that filled it, or
    of the last copy that was tried."""

    __slots__ = ("node", "offset", "status")

    def __init__(self, placement: Placement, offset: int, buffer: Buffer) -> None:
        super().__init__(0, b"", buffer)
        self.placement = placement
        self.offset = offset
        self.status = Status.UNREACHABLE
        self.node = ""

    @property
    def size(self) -> int:
        return memoryview(self.buffer).nbytes  # type: ignore[arg-type]


class _PieceReading(Reading):
    def call(
        self, wants: Sequence[Wanted], slots: U32, generations: U64, buffers: Sequence[Buffer]
    ) -> ReadRangeCall:
        offsets = [want.offset for want in wants if isinstance(want, Piece)]
        return ReadRangeCall(slots, generations, np.array(offsets, np.uint64), buffers)


def read_pieces(context: Context, pieces: Sequence[Piece]) -> Protocol[None]:
    """Fills what can be filled; the status of each says what became of it. The generation is
    checked, no CRC: that is of the whole object."""
    waiting = [piece for piece in pieces if piece.next_replica() is not None]
    while waiting:
        reading = _PieceReading(context, list(waiting), verify=False)
        yield from reading.run()
        if reading.all_well:
            for entry in reading.race.entries:
                for i in entry.wants:
                    waiting[i].status, waiting[i].node = Status.OK, entry.port.node
            break
        for i, piece in enumerate(waiting):
            _take(reading, i, piece)
        if context.left() <= 0:
            break
        waiting = [
            piece
            for piece in waiting
            if piece.status not in (Status.OK, Status.BOUNDS) and piece.next_replica() is not None
        ]


def _take(reading: Reading, i: int, piece: Piece) -> None:
    race = reading.race
    won = race.winner.get(i)
    if won is not None:
        number, block = won
        entry, outcome = race.entries[number], race.outcomes[number]
        assert outcome is not None
        piece.status, piece.node = Status(int(outcome.status[block])), entry.port.node
        if piece.status == Status.OK and number >= race.firsts:
            copy_whole(entry.call.buffers[block], piece.size, piece.buffer)
        return
    for entry, replicas, outcome in zip(race.entries, reading.replicas, race.outcomes, strict=True):
        if outcome is None or i not in entry.wants:
            continue
        block = list(entry.wants).index(i)
        piece.tried.add(replicas[block])
        piece.status = Status(int(outcome.status[block]))
        piece.reason = FAILURE.get(piece.status, piece.reason)
