"""Prefix hashes of a prompt: what the index is keyed by, and nothing an engine has to know.

The chain is the core's 64-bit one. Model, namespace and adapter are its seed, so equal tokens of
two tenants have different hashes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from moonpool import _core
from moonpool.core.errors import BadInput
from moonpool.router.base import Hashes, Tokens

TOKEN_MAX = (1 << 32) - 1
HASH_VERSION = 2
"""Of the routing chain of native/block_hash.hpp: routers of another version have other hashes."""


@lru_cache(maxsize=4096)
def prefix_seed(model: str, namespace: str = "", adapter: str = "", group: int = 0) -> int:
    """What the chain of these begins with; never 0 but for three empty names."""
    return _core.group_seed(_core.prefix_seed(model, namespace, adapter), group)


def token_array(tokens: Tokens) -> npt.NDArray[np.uint32]:
    """The tokens as a contiguous uint32 array, not copied when they are one. Raises BadInput."""
    if isinstance(tokens, np.ndarray) and tokens.dtype == np.uint32 and tokens.ndim == 1:
        return np.ascontiguousarray(tokens)
    try:
        wide = np.asarray(tokens)
        if wide.size == 0:
            return np.zeros(0, np.uint32)
        if wide.ndim != 1 or wide.dtype.kind not in "iu":
            raise ValueError(f"an array of {wide.dtype} with {wide.ndim} dimensions")
        if int(wide.min()) < 0 or int(wide.max()) > TOKEN_MAX:
            raise ValueError("a token id below 0 or above 2^32 - 1")
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"tokens are not a list of token ids: {error}") from None
    return wide.astype(np.uint32)


def prefix_hashes(tokens: Tokens, block_size: int, seed: int = 0) -> Hashes:
    """One hash a whole block; each covers all tokens before it. Raises BadInput."""
    if block_size < 1:
        raise BadInput(f"block_size must be at least 1, not {block_size}")
    return _core.block_hashes_u64(token_array(tokens), block_size, seed)
