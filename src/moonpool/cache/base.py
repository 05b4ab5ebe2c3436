"""The words that the rooms of an engine's own cache share, and its errors' one home.

Who owns a page (its id is a row of the engine's tensors), always exactly one of:

    free list     PageAllocator                      free
    a sequence    its table, behind the shared part  private: being computed, or a partial tail
    the tree      RadixCache                         shared: held by leases, else it may be evicted
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from moonpool.core.errors import BadInput

I32 = npt.NDArray[np.int32]
U64 = npt.NDArray[np.uint64]
Tokens = npt.NDArray[np.int32] | npt.NDArray[np.uint32]

PAGE_SIZE_MAX: Final = 1 << 20


def as_tokens(tokens: object) -> Tokens:
    """Token ids as a contiguous int32 or uint32 array, without a copy where they are one.

    Takes numpy arrays, CPU tensors and sequences. Raises BadInput for what is no list of u32.
    """
    try:
        array = np.asarray(tokens)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise BadInput(f"token ids are u32[n]: {error}") from error
    if array.ndim != 1:
        raise BadInput(f"token ids are u32[n], not of shape {list(array.shape)}")
    if array.dtype in (np.int32, np.uint32):
        return np.ascontiguousarray(array)
    if array.size == 0:
        return np.zeros(0, np.int32)
    if array.dtype.kind not in "iu":
        raise BadInput(f"token ids are u32[n], not {array.dtype}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= 2**32:
        raise BadInput(f"token ids are u32[n]; found {low if low < 0 else high}")
    return array.astype(np.uint32)


def pages_for(tokens: int, page_size: int) -> int:
    """Pages that so many tokens need, the last one perhaps in part."""
    return -(-tokens // page_size)


def checked_page_size(page_size: int) -> int:
    if not 1 <= page_size <= PAGE_SIZE_MAX:
        raise BadInput(f"a page has 1 to {PAGE_SIZE_MAX} tokens, not {page_size}")
    return page_size
