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
from moonpool.core.keys import as_token_ids

I32 = npt.NDArray[np.int32]
U64 = npt.NDArray[np.uint64]
Tokens = npt.NDArray[np.int32] | npt.NDArray[np.uint32]

PAGE_SIZE_MAX: Final = 1 << 20


def as_tokens(tokens: object) -> Tokens:
    """Token ids as the tree takes them: an int32 array as it is, anything else as uint32.

    Raises BadInput for what is no list of u32.
    """
    if isinstance(tokens, np.ndarray) and tokens.dtype == np.int32 and tokens.ndim == 1:
        return np.ascontiguousarray(tokens)
    return as_token_ids(tokens)


def pages_for(tokens: int, page_size: int) -> int:
    """Pages that so many tokens need, the last one perhaps in part."""
    return -(-tokens // page_size)


def checked_page_size(page_size: int) -> int:
    if not 1 <= page_size <= PAGE_SIZE_MAX:
        raise BadInput(f"a page has 1 to {PAGE_SIZE_MAX} tokens, not {page_size}")
    return page_size
