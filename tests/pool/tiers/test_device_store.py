"""A tier in a device's memory, over plain memory here: its pieces, its objects, a node without."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moonpool.core.clock import SystemClock
from moonpool.core.errors import BadConfig
from moonpool.core.sections import NodeConfig
from moonpool.pool.tier_open import open_tiers
from moonpool.pool.tiers.base import WHOLE, Buffer, Status
from moonpool.pool.tiers.device_memory import FreePieces, TorchMemory
from moonpool.pool.tiers.device_store import DeviceStore
from tests.pool.tiers.disk_rig import made


class HostMemory:
    """As a device has it; `between` is done in the middle of a read."""

    def __init__(self, nbytes: int) -> None:
        self.data = bytearray(nbytes)
        self.nbytes = nbytes
        self.between: Callable[[], None] = lambda: None

    def write(self, offset: int, data: memoryview) -> None:
        assert offset >= 0 and offset + data.nbytes <= self.nbytes
        self.data[offset : offset + data.nbytes] = data

    def read(self, offset: int, length: int) -> Buffer:
        assert offset >= 0 and offset + length <= self.nbytes
        self.between()
        return bytes(self.data[offset : offset + length])


def got(store: DeviceStore, slot: int, generation: int = 1) -> bytes | Status:
    answer = store.read(slot, generation, 0, WHOLE)
    return answer if isinstance(answer, Status) else bytes(answer)


def test_what_was_written_is_read_whole_and_in_ranges() -> None:
    store = DeviceStore(HostMemory(10_000))
    entry, data = made(3, size=4000)
    assert store.write(entry, data) is Status.OK
    assert got(store, 3) == data and list(store.entries()) == [entry]
    assert bytes(store.read(3, 1, 100, 50)) == data[100:150]
    assert bytes(store.read(3, 1, 4000, 0)) == b""
    assert store.read(3, 1, 3999, 2) is Status.BOUNDS
    assert got(store, 3, generation=2) is Status.MOVED and got(store, 4) is Status.MOVED
    assert store.write(entry, data[1:]) is Status.BOUNDS
    assert store.erase(3, 1) is Status.OK and store.erase(3, 1) is Status.MOVED
    assert got(store, 3) is Status.MOVED and store.usage()["size_bytes"] == 0


def test_an_object_lies_in_pieces_where_there_is_no_room_for_the_whole() -> None:
    store = DeviceStore(HostMemory(10_000))
    for slot in range(10):
        assert store.write(*made(slot, size=1000)) is Status.OK
    for slot in range(0, 10, 2):
        store.erase(slot, 1)
    entry, data = made(20, size=4500)
    assert store.write(entry, data) is Status.OK
    assert got(store, 20) == data and bytes(store.read(20, 1, 900, 2300)) == data[900:3200]
    assert store.write(*made(21, size=501)) is Status.NO_SPACE
    assert store.write(*made(21, size=500)) is Status.OK
    assert [got(store, slot) for slot in range(1, 10, 2)] == [
        made(n, size=1000)[1] for n in range(1, 10, 2)
    ]


def test_what_was_erased_and_written_over_under_a_read_is_moved() -> None:
    memory = HostMemory(1000)
    store = DeviceStore(memory)
    store.write(*made(0, size=1000))

    def another() -> None:
        memory.between = lambda: None
        store.erase(0, 1)
        store.write(*made(1, size=1000))

    memory.between = another
    assert got(store, 0) is Status.MOVED
    assert got(store, 1) == made(1, size=1000)[1]


def test_a_flipped_bit_is_said_and_not_kept() -> None:
    memory = HostMemory(1000)
    store = DeviceStore(memory)
    store.write(*made(0, size=1000))
    memory.data[500] ^= 1
    assert got(store, 0) is Status.CORRUPT and got(store, 0) is Status.MOVED
    assert store.take_lost() == [(0, 1)] and store.take_lost() == []
    assert store.usage()["corrupt_objects"] == 1


def test_another_life_is_another_incarnation() -> None:
    assert DeviceStore(HostMemory(8)).incarnation != DeviceStore(HostMemory(8)).incarnation


@given(st.integers(0, 2**32), st.integers(0, 300))
def test_pieces_never_overlap_and_none_is_lost(seed: int, nbytes: int) -> None:
    draw, free = random.Random(seed), FreePieces(nbytes)
    held: list[list[tuple[int, int]]] = []
    for _ in range(60):
        if held and draw.random() < 0.5:
            free.give_back(held.pop(draw.randrange(len(held))))  # type: ignore[arg-type]
        else:
            wanted = draw.randrange(80)
            taken = free.take(wanted)
            if taken is None:
                assert wanted > free.free_bytes
            else:
                assert sum(length for _, length in taken) == wanted
                held.append([*taken])
        owned = [byte for pieces in held for at, n in pieces for byte in range(at, at + n)]
        assert len(owned) == len(set(owned)) and all(0 <= byte < nbytes for byte in owned)
        assert free.free_bytes == nbytes - len(owned)
    for pieces in held:
        free.give_back(pieces)  # type: ignore[arg-type]
    assert free.take(nbytes) == ([(0, nbytes)] if nbytes else []), "all is one piece again"


def test_bytes_on_a_device_by_torch() -> None:
    memory = TorchMemory("cpu", 100)
    memory.write(10, memoryview(b"12345"))
    assert bytes(memory.read(10, 5)) == b"12345" and bytes(memory.read(12, 2)) == b"34"
    copied = memory.read(10, 5)
    memory.write(10, memoryview(b"xxxxx"))
    assert bytes(copied) == b"12345", "what was read is nobody else's"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_node_without_a_gpu_says_so_at_its_start(tmp_path: object) -> None:
    config = NodeConfig(vram=1 << 20, dir=str(tmp_path))
    with pytest.raises(BadConfig, match="no CUDA device here for 'cuda'"):
        open_tiers(config, "n", SystemClock())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_objects_on_a_gpu() -> None:
    store = DeviceStore(TorchMemory("cuda", 1 << 20))
    for slot in range(20):
        assert store.write(*made(slot, size=50_000)) is Status.OK
    assert [got(store, slot) for slot in range(20)] == [made(n, size=50_000)[1] for n in range(20)]
