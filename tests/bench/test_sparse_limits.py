"""What the sparse bench measures beside moves the bytes that it says, and sums what it says."""

import time
from pathlib import Path

import numpy as np

from moonpool.bench.sparse_limits import Memcpy, PlainProgram
from moonpool.bench.sparse_parts import Laps, Spare

SIZE = 600 << 10  # more than two of the pieces that are sent again and again


def test_the_plain_program_goes_on_where_it_stopped(tmp_path: Path) -> None:
    source = tmp_path / "segment"
    held = np.random.default_rng(3).integers(0, 256, SIZE, np.uint8)
    source.write_bytes(held.tobytes())
    piece = held[: 256 << 10]
    with PlainProgram(source) as plain:
        got = np.zeros(SIZE // 3 * 2, np.uint8)
        plain.read(got)
        assert np.array_equal(got, held[: len(got)])
        again = np.zeros(2 * len(piece) + 5, np.uint8)
        plain.read(again, 100, again=True)
        assert np.array_equal(again, np.concatenate([piece, piece, piece[:5]]))
        plain.read(got)  # round the end
        assert np.array_equal(got, np.concatenate([held, held])[len(got) : 2 * len(got)])


def test_a_memcpy_is_of_the_segments_end(tmp_path: Path) -> None:
    source = tmp_path / "segment"
    source.write_bytes(bytes(range(200)))
    got = np.zeros(50, np.uint8)
    Memcpy(source).read(got)
    assert got.tolist() == list(range(150, 200))


def test_a_lap_is_the_sum_of_its_parts() -> None:
    laps = Laps()
    for lap in (1, 2, 3):
        with laps.sums() as sums:
            for _ in range(4):
                sums.add("full", lap)
                sums.time("step", lambda: time.sleep(0.001))
    assert laps.median("full") == 8
    assert laps.figures("full") == {"full_s": 8, "full_fastest_s": 4}
    assert laps.figures("step")["step_fastest_s"] >= 0.004


def test_spare_memory_is_another_part_each_time() -> None:
    spare = Spare(100)
    first, second = spare.take(40), spare.take(60)
    first[:] = 2
    assert len(second) == 60 and (second == 1).all()
    assert (spare.take(41)[:40] == 2).all()  # from the beginning again
    assert len(spare.take(100)) == 100
