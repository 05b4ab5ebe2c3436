"""A pool in a dictionary with an LRU of blocks, for tests of what drives a pool."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal
from zlib import crc32

from moonpool.pool.results import Hit, Miss, MissReason, PrefixMatch, PutResult, PutStatus


class FakePool:
    """Keeps `capacity` blocks; the least recently used goes first, a chain's tail before its head.

    `broken` maps keys to the reason they miss with; `put_status` overrides what puts answer.
    """

    def __init__(self, capacity: int = 1 << 30) -> None:
        self.capacity = capacity
        self.values: OrderedDict[bytes, bytearray] = OrderedDict()
        self.parents: dict[bytes, bytes | None] = {}
        self.broken: dict[bytes, MissReason] = {}
        self.sums: dict[bytes, int] = {}
        self.put_status: PutStatus | None = None

    def match_prefix(self, keys: Sequence[bytes]) -> PrefixMatch:
        count = 0
        while count < len(keys) and keys[count] in self.values:
            count += 1
        return PrefixMatch(count, 0, [], count)

    def get_many_into(
        self, keys: Sequence[bytes], buffers: Sequence[memoryview]
    ) -> list[Hit | Miss]:
        answers: list[Hit | Miss] = []
        for key, buffer in zip(keys, buffers, strict=True):
            if key in self.broken:
                answers.append(Miss(self.broken[key]))
            elif key in self.values and crc32(self.values[key]) != self.sums[key]:
                del self.values[key]
                answers.append(Miss(MissReason.CORRUPT))
            elif key in self.values:
                buffer[:] = self.values[key]
                answers.append(Hit(len(self.values[key]), "fake"))
            else:
                answers.append(Miss(MissReason.ABSENT))
        self._touch(keys)
        return answers

    def put_many(
        self,
        keys: Sequence[bytes],
        values: Sequence[memoryview],
        *,
        parents: Literal["chain"],
        parent: bytes | None,
    ) -> list[PutResult]:
        if self.put_status:
            return [PutResult(self.put_status)] * len(keys)
        self.parents |= dict(zip(keys, [parent, *keys], strict=False))
        results = [PutResult(PutStatus.EXISTS)] * len(keys)
        for index in reversed(range(len(keys))):
            key = keys[index]
            if key in self.values and key not in self.broken:
                continue
            self.broken.pop(key, None)
            self.values[key] = bytearray(values[index])
            self.sums[key] = crc32(values[index])
            self._touch([key])
            results[index] = PutResult(PutStatus.STORED, 1)
            while len(self.values) > self.capacity:
                self.values.popitem(last=False)
        return results

    def _touch(self, keys: Sequence[bytes]) -> None:
        """The last key first; a touch of a child is a touch of its ancestors."""
        for start in reversed(keys):
            key: bytes | None = start
            while key is not None and key in self.values:
                self.values.move_to_end(key)
                key = self.parents[key]

    def view(self, key: bytes) -> FakeView:
        return FakeView(self.values[key])


class FakeView:
    """A window on the stored bytes themselves."""

    zero_copy = True

    def __init__(self, value: bytearray) -> None:
        self._value = value

    def __enter__(self) -> memoryview | None:
        return memoryview(self._value).toreadonly()

    def __exit__(self, *error: object) -> None:
        pass
