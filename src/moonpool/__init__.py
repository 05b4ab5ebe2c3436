"""Moonpool: a disaggregated KV cache for LLM serving.

pool = moonpool.connect("127.0.0.1:7400")    # or moonpool.Pool.local(memory="1GiB")
pool.put("key", b"bytes")
pool.get("key")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Hit", "Keep", "KeySpec", "Miss", "Pool", "PutResult", "aio", "connect", "errors"]

if TYPE_CHECKING:
    from moonpool import aio
    from moonpool.core import errors
    from moonpool.core.keys import KeySpec
    from moonpool.pool.connect import connect
    from moonpool.pool.keep import Keep
    from moonpool.pool.pool import Pool
    from moonpool.pool.results import Hit, Miss, PutResult

_HOMES = {
    "Hit": "moonpool.pool.results",
    "Keep": "moonpool.pool.keep",
    "KeySpec": "moonpool.core.keys",
    "Miss": "moonpool.pool.results",
    "Pool": "moonpool.pool.pool",
    "PutResult": "moonpool.pool.results",
    "connect": "moonpool.pool.connect",
}
_MODULES = {"aio": "moonpool.aio", "errors": "moonpool.core.errors"}


def __getattr__(name: str) -> Any:
    """The face is loaded on first use: `moonpool --help` must not wait for it."""
    import importlib

    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'moonpool' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
