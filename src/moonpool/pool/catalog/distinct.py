"""Which numbers occur. `np.unique` of numpy 2.4 asks a hash table: of 32 Ki numbers that takes
thirty times as long as to sort them, and an inventory has many.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T", bound=np.integer[Any])


def distinct(values: npt.NDArray[T]) -> npt.NDArray[T]:
    """Each of them once, in order."""
    ordered = np.sort(values)
    first = np.ones(ordered.size, np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]
