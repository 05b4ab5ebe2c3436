"""The last keys that eviction took, and no more of them than the bound."""

import numpy as np
import pytest

from moonpool.pool.catalog import evicted
from moonpool.pool.catalog.evicted import Evicted
from moonpool.pool.columns import pack_keys, u32


def columns(*keys: bytes) -> tuple[bytes, np.ndarray[tuple[int], np.dtype[np.uint32]]]:
    packed = pack_keys(list(keys))
    return packed.blob, u32(packed.ends)


def known(memory: Evicted, *keys: bytes) -> list[int]:
    return memory.among(*columns(*keys), np.arange(len(keys)))


def test_what_was_evicted_is_known_until_it_is_removed() -> None:
    memory = Evicted()
    memory.add(*columns(b"a", b"b", b"c"))
    assert known(memory, b"x", b"a", b"c") == [1, 2]
    memory.forget(*columns(b"a"))
    assert known(memory, b"a", b"b") == [1]


def test_the_last_half_of_the_bound_is_always_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evicted, "REMEMBERED_MAX", 8)
    memory = Evicted()
    keys = [b"%d" % i for i in range(25)]
    for start in range(0, 25, 3):
        memory.add(*columns(*keys[start : start + 3]))
        assert len(memory) <= 8
    assert known(memory, *keys[-4:]) == [0, 1, 2, 3]
    assert known(memory, *keys[:10]) == []
    memory.add(*columns(*keys))  # more at once than are kept
    assert len(memory) <= 8 and known(memory, keys[-1]) == [0]


def test_of_one_that_came_twice_nothing_is_left_once_it_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evicted, "REMEMBERED_MAX", 4)
    memory = Evicted()
    memory.add(*columns(b"a", b"b"))
    memory.add(*columns(b"a"))
    memory.forget(*columns(b"a"))
    assert known(memory, b"a", b"b") == [1]
