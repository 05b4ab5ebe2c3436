"""The few steps that every test of a shared segment takes: claims, puts and status names."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from moonpool import _core

OK, MOVED, CORRUPT, BOUNDS, NO_SPACE, NO_SLOT, STALE_TERM, EXPIRED = range(8)
REFUSED, NOT_FOUND, TOO_BIG, BUSY = 9, 11, 12, 13

CLAIM = np.dtype(
    [
        ("size", "<u8"),
        ("term", "<u8"),
        ("seq", "<u8"),
        ("expiry_ms", "<i8"),
        ("tenant", "<u4"),
        ("key_len", "<u2"),
        ("parent_len", "<u2"),
        ("replicas", "u1"),
        ("pin", "u1"),
        ("flags", "<u2"),
        ("last_used", "<u4"),
    ]
)


class At(NamedTuple):
    """Where an object is; `slots` and `generations` are the same as columns of one entry."""

    slot: int
    generation: int

    @property
    def slots(self) -> npt.NDArray[np.uint32]:
        return np.array([self.slot], np.uint32)

    @property
    def generations(self) -> npt.NDArray[np.uint64]:
        return np.array([self.generation], np.uint64)


def failed(status: int) -> int:
    return -1 - status


def records(sizes: list[int], keys: list[bytes], **fields: Any) -> npt.NDArray[Any]:
    claims = np.zeros(len(sizes), CLAIM)
    claims["size"] = sizes
    claims["key_len"] = [len(key) for key in keys]
    for name, value in fields.items():
        claims[name] = value
    return claims


def claim(
    agent: _core.SegmentAgent,
    size: int,
    key: bytes = b"key",
    writer: _core.SegmentClient | None = None,
    **fields: Any,
) -> At:
    row, epoch = (writer.row, writer.row_epoch) if writer else (-1, 0)
    claims = records([size], [key], **fields)
    status, slot, generation = agent.claim(claims, key, agent.term, row, epoch)
    assert status[0] == OK, f"claim of {size} bytes: status {status[0]}"
    return At(int(slot[0]), int(generation[0]))


def seal(agent: _core.SegmentAgent, at: At, crc: int | None = None) -> int:
    crcs = np.array([crc or 0], np.uint32)
    flags = 1 if crc is None else 0
    return int(agent.seal(at.slots, at.generations, crcs, flags, agent.term)[0])


def put(agent: _core.SegmentAgent, data: bytes, key: bytes = b"key", **fields: Any) -> At:
    at = claim(agent, len(data), key, **fields)
    assert agent.write(at.slot, at.generation, 0, data) == OK
    assert seal(agent, at) == OK
    return at


def retire(agent: _core.SegmentAgent, at: At, **options: int) -> int:
    return int(agent.retire(at.slots, at.generations, agent.term, **options)[0])


@contextmanager
def memory_agent(
    capacity_bytes: int = 1 << 20, slots: int = 64, **options: Any
) -> Iterator[_core.SegmentAgent]:
    agent = _core.SegmentAgent.create(None, capacity_bytes, 0, slots, populate=False, **options)
    yield agent
    agent.close()
