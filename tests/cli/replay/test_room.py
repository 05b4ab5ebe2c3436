"""What a replay needs is asked for before anything starts."""

from pathlib import Path

import pytest

from moonpool.cli.replay.room import Room, free_memory
from moonpool.core.errors import SegmentSpace
from tests.cli.replay.test_driver import MINI


def test_without_a_capacity_there_is_room_for_every_block_on_any_number_of_nodes() -> None:
    for nodes in (1, 2, 3, 7):
        room = Room.of(MINI, nodes, 64, None)
        assert nodes * room.capacity_blocks >= MINI.summary.different_blocks + room.longest_blocks


def test_a_capacity_is_of_each_node_and_exact() -> None:
    assert Room.of(MINI, 2, 100, 5).capacity_bytes == 500


def test_the_refusal_shows_the_sum() -> None:
    room = Room.of(MINI, 2, 1 << 20, 1000)
    with pytest.raises(SegmentSpace, match=r"2 nodes x \(1,000 blocks x 1 MiB") as error:
        room.check({"shared memory": 1 << 30, "memory": 1 << 40})
    assert "1 GiB is free" in str(error.value)
    with pytest.raises(SegmentSpace, match="of memory"):
        room.check({"shared memory": 1 << 40, "memory": 1 << 30})
    room.check({"shared memory": 1 << 40, "memory": 1 << 40})


def test_free_memory_is_a_number_of_this_machine(tmp_path: Path) -> None:
    assert all(size > 0 for size in free_memory(tmp_path).values())
