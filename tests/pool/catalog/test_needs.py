"""What an eviction has found, and how much of it a need takes."""

import numpy as np
import pytest

from moonpool.pool.catalog.needs import Victims


def found() -> Victims:
    victims = Victims()
    none = np.zeros(0, np.uint64)
    victims.extend(np.zeros(0, np.int32), np.zeros(0, np.uint32), none, none)
    for rows, ends, sizes in (([5, 4], [2], [30]), ([7, 8], [1, 2], [10, 20])):
        victims.extend(
            np.array(rows, np.int32),
            np.array(ends, np.uint32),
            np.array(sizes, np.uint64),
            np.array(ends, np.uint64),
        )
    return victims


@pytest.mark.parametrize(
    ("size", "objects", "rows"),
    [
        (0, 0, []),
        (1, 0, [5, 4]),  # a closure goes whole
        (30, 2, [5, 4]),
        (31, 0, [5, 4, 7]),
        (0, 4, [5, 4, 7, 8]),
        (1000, 0, [5, 4, 7, 8]),  # all there is
    ],
)
def test_leading_closures_that_are_enough(size: int, objects: int, rows: list[int]) -> None:
    assert found().rows(size, objects).tolist() == rows


def test_all_that_was_found() -> None:
    assert found().chosen().tolist() == [5, 4, 7, 8]
    assert (found().size, found().objects) == (50, 4)
    assert Victims().chosen().size == 0
