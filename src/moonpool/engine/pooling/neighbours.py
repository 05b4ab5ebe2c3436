"""Who else stores blocks in the pool that this engine cannot use, and why not.

Keys of another model, element type or block size never match, silently. So each engine leaves a
small object that says what its keys are made of, and reads those of others when it starts.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import msgspec

from moonpool.core.errors import BadInput, PoolError, TransferError
from moonpool.core.keys import KeySpec
from moonpool.pool.pool import Pool

PREFIX: Final = b"engine/"
OTHERS_MAX: Final = 64
TIMEOUT_S: Final = 1.0
_COMPARED: Final = ("model", "dtype", "layout", "block_size")


def announce(pool: Pool, spec: KeySpec) -> list[str]:
    """Leave this engine's object; a line for each kind of engine it cannot share with.

    A pool that does not answer has no lines: nothing depends on them.
    """
    own = PREFIX + spec.prefix.rstrip(b"/")
    try:
        listed = islice(pool.list(PREFIX, timeout_s=TIMEOUT_S), OTHERS_MAX)
        keys = [item.key for item in listed if item.key != own]
        values = [pool.get(key, timeout_s=TIMEOUT_S) for key in keys]
        pool.put(own, msgspec.json.encode(spec), timeout_s=TIMEOUT_S)
    except (PoolError, TransferError):
        return []
    others = [other for value in values if (other := _spec_of(value)) is not None]
    return sorted(
        {
            f"the pool has blocks of an engine with {differences(spec, o)}: neither can "
            "reuse what the other stores"
            for o in others
        }
    )


def differences(here: KeySpec, there: KeySpec) -> str:
    """'block_size 32 (here 64)' for each field of `there` that is another."""
    pairs = [(name, getattr(there, name), getattr(here, name)) for name in _COMPARED]
    return (
        ", ".join(
            f"{name} {theirs} (here {ours})" for name, theirs, ours in pairs if theirs != ours
        )
        or "other keys"
    )


def _spec_of(value: bytes | None) -> KeySpec | None:
    if value is None:
        return None
    try:
        return msgspec.json.decode(value, type=KeySpec)
    except (msgspec.DecodeError, BadInput):  # of a newer release, or somebody else's
        return None
