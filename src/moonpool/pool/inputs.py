"""What callers may hand in, brought into one form. Bad input raises before anything is sent."""

from __future__ import annotations

import operator
import sys
from array import array
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from moonpool import _core
from moonpool.core.clock import SystemClock
from moonpool.core.errors import BadInput, BadKey, BadSize
from moonpool.core.key_batch import KEY_BYTES_MAX
from moonpool.pool.columns import pack_keys
from moonpool.pool.keep import Keep, as_keep
from moonpool.pool.messages import REPLICAS_MAX, KeyColumn, RemoveWhere
from moonpool.pool.ports import Buffer
from moonpool.pool.protocol_reserve import PutOptions
from moonpool.pool.puts import NO_PARENT, Columns, PutItem, Puts

BATCH_KEYS_MAX = 65_536  # as the master's BATCH_MAX
TTL_S_MAX = 1e10  # three hundred years; None is forever
Key = str | bytes
T = TypeVar("T", bound=Sequence[Any])
Pin = Literal["soft", "hard"] | Keep | None


def as_key(key: Key) -> bytes:
    """A key is 1 to 1,024 bytes; text is taken as UTF-8. Raises BadKey."""
    if type(key) is str:
        key = _encoded(key)
    elif type(key) is not bytes:
        if not isinstance(key, str | bytes | bytearray | memoryview):
            raise BadKey(f"a key is str or bytes, not {type(key).__name__}")
        key = _encoded(key) if isinstance(key, str) else bytes(key)
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise BadKey(f"a key of {len(key)} bytes; it takes 1 to {KEY_BYTES_MAX}")
    return key


def as_keys(keys: Sequence[Key]) -> list[bytes]:
    if isinstance(keys, str | bytes):
        raise BadKey("a sequence of keys is needed, not one key")
    if not hasattr(keys, "__iter__"):
        raise BadKey(f"a sequence of keys is needed, not {type(keys).__name__}")
    encoded = _core.encode_keys(keys) if type(keys) is list else None
    return fit_batch([as_key(key) for key in keys] if encoded is None else encoded)


def as_key_column(keys: Sequence[Key]) -> KeyColumn:
    """The same in the form they travel in."""
    packed = _core.pack_keys(keys) if type(keys) is list else None
    if packed is None:
        return pack_keys(as_keys(keys))
    fit_batch(keys)
    return KeyColumn(*packed)


def fit_batch(keys: T) -> T:
    """The keys themselves. Raises BadSize when they are too many for one call."""
    if len(keys) > BATCH_KEYS_MAX:
        raise BadSize(f"a batch of {len(keys)} keys; at most {BATCH_KEYS_MAX}, use several")
    return keys


def as_prefix(prefix: Key) -> bytes:
    """The beginning of keys; may be empty, and then begins all of them."""
    return as_key(prefix) if prefix not in ("", b"") else b""


def _encoded(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise BadKey(f"{key!r} is no Unicode text ({error.reason}); give bytes") from None


def as_source(value: Buffer) -> tuple[Buffer, int]:
    """A readable, C-contiguous buffer and its bytes. Raises BadInput."""
    if type(value) is bytes:
        return value, len(value)
    value, view = _bytes_of(value, "a value")
    return value, view.nbytes


def as_target(buffer: Buffer) -> Buffer:
    """A writable, C-contiguous buffer. Raises BadInput."""
    if type(buffer) is bytearray:
        return buffer
    buffer, view = _bytes_of(buffer, "a buffer")
    if view.readonly:
        raise BadInput("the buffer is read-only; give a bytearray or a writable array")
    return buffer


def as_targets(buffers: Sequence[Buffer], count: int) -> list[Buffer]:
    """One target a key. Raises BadInput, BadSize."""
    if not hasattr(buffers, "__iter__"):
        raise BadInput(f"a sequence of buffers is needed, not {type(buffers).__name__}")
    targets = [as_target(buffer) for buffer in buffers]
    if len(targets) != count:
        raise BadSize(f"{count} keys but {len(targets)} buffers")
    return targets


def _bytes_of(value: Any, what: str) -> tuple[Buffer, memoryview]:
    """A contiguous buffer that is bytes and nothing else, and a view of it. Raises BadInput."""
    if not isinstance(value, bytes | bytearray | memoryview | np.ndarray):
        value = _array_of(value)
    if isinstance(value, np.ndarray):
        refuse_references(value)
        if value.flags.c_contiguous and value.dtype.kind in "mM":
            value = value.view(np.int64)  # dates have no buffer, but bytes
    try:
        view = memoryview(value)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"{what} needs the buffer protocol (bytes, memoryview, numpy): "
            f"{type(value).__name__}: {error}"
        ) from None
    if not view.c_contiguous:
        raise BadInput(f"{what} must be C-contiguous; numpy.ascontiguousarray makes it so")
    return value, view


def refuse_references(array: np.ndarray[Any, Any]) -> None:
    """Addresses of Python objects mean nothing elsewhere, and kill the process that believes
    them."""
    if array.dtype.hasobject:
        raise BadInput("an array of Python objects holds addresses, not their bytes")


def _array_of(value: Any) -> Any:
    """A torch tensor on the CPU as an array, without importing torch; others as they are."""
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach()
    try:
        return tensor.numpy()
    except TypeError as error:
        try:  # bfloat16 and float8 have no numpy type, but bytes
            return tensor.view(sys.modules["torch"].uint8).numpy()
        except (KeyError, RuntimeError, TypeError):
            raise BadInput(f"this tensor has no bytes to be seen from here: {error}") from None


def as_count(value: int, what: str, low: int = 0, high: int = 2**63 - 1) -> int:
    """A whole number, also numpy's. Raises BadSize."""
    try:
        count = operator.index(value)
    except TypeError:
        count = low - 1
    if not low <= count <= high:
        raise BadSize(f"{what} must be {low} to {high}, not {value!r}")
    return count


def as_sizes(sizes: Sequence[int]) -> list[int]:
    if not hasattr(sizes, "__iter__"):
        raise BadSize(f"a sequence of sizes is needed, not {type(sizes).__name__}")
    return [as_count(size, "a size in bytes") for size in sizes]


def as_replicas(replicas: int, min_replicas: int | None) -> tuple[int, int]:
    count = as_count(replicas, "replicas", 1, REPLICAS_MAX)
    least = count if min_replicas is None else as_count(min_replicas, "min_replicas", 1, count)
    return count, least


def as_expiry_ms(ttl_s: float | None) -> int:
    """The wall-clock moment (ms since 1970) a time to live ends at; 0: never."""
    if ttl_s is None:
        return 0
    if not isinstance(ttl_s, int | float) or not 0 < ttl_s <= TTL_S_MAX:
        raise BadInput(f"ttl_s is a number of seconds up to {TTL_S_MAX:.0f}, not {ttl_s!r}")
    return SystemClock().wall_ms() + max(1, int(ttl_s * 1000))


def as_where(
    prefix: Key,
    contains: Key,
    suffix: Key,
    min_bytes: int,
    max_bytes: int | None,
    dry_run: bool,
) -> RemoveWhere:
    """Raises BadInput when no condition is given: that would be everything."""
    start, middle, end = as_prefix(prefix), as_prefix(contains), as_prefix(suffix)
    low = as_count(min_bytes, "min_bytes")
    high = 2**63 - 1 if max_bytes is None else as_count(max_bytes, "max_bytes", low)
    if not (start or middle or end) and low == 0 and max_bytes is None:
        raise BadInput("remove_where needs a condition; without one it would remove everything")
    return RemoveWhere(start, middle, end, low, high, dry_run)


_PLAIN = PutOptions(1, 1, parents=False)  # of most puts


def as_options(
    replicas: int,
    min_replicas: int | None,
    pin: Pin,
    ttl_s: float | None,
    parents: Sequence[Key | None] | Literal["chain"] | None,
    replace: bool,
) -> PutOptions:
    """Raises BadInput."""
    bare = min_replicas is None and pin is None and ttl_s is None and parents is None
    if bare and type(replicas) is int and replicas == 1 and replace is False:
        return _PLAIN
    count, least = as_replicas(replicas, min_replicas)
    keep = as_keep(pin)
    return PutOptions(
        count,
        least,
        keep.code,
        keep.ttl_ms,
        keep.refresh,
        keep.group_name,
        as_expiry_ms(ttl_s),
        chain=parents == "chain",
        replace=replace,
        parents=parents is not None,
    )


def as_puts(
    keys: Sequence[Key],
    values: Sequence[Buffer],
    parents: Sequence[Key | None] | Literal["chain"] | None,
    parent: Key | None = None,
) -> Puts:
    """The batch of a put; raises as `as_items`."""
    if parents is None and set(map(type, values)) == {bytes}:  # nothing to look at
        named = _named(keys, values)
        return Puts(Columns(named, list(values), array("Q", map(len, values))))
    return Puts.of(as_items(keys, values, parents, parent))


def _named(keys: Sequence[Key], values: Sequence[Buffer]) -> list[bytes]:
    named = as_keys(keys)
    if len(values) != len(named):
        raise BadSize(f"{len(named)} keys but {len(values)} values")
    return named


def as_items(
    keys: Sequence[Key],
    values: Sequence[Buffer],
    parents: Sequence[Key | None] | Literal["chain"] | None,
    parent: Key | None = None,
) -> list[PutItem]:
    """Items of a batch put. `parents`: one key or None per item, or "chain": each item's parent is
    the item before, the first one's is `parent`. A parent that is an earlier item of the batch
    is found there. Raises BadKey, BadInput, BadSize."""
    named = _named(keys, values)
    sources = map(as_source, values)
    items = [PutItem(key, *source) for key, source in zip(named, sources, strict=True)]
    if parents == "chain":
        for i, item in enumerate(items):
            item.parent = i - 1 if i else NO_PARENT
        if items and parent is not None:
            items[0].outside_parent = as_key(parent)
    elif parents is not None:
        listed = isinstance(parents, Sequence) and not isinstance(parents, str)
        if not listed or len(parents) != len(items):
            raise BadInput('parents is "chain", or one key or None per item')
        _name_parents(items, parents)
    return items


def _name_parents(items: list[PutItem], parents: Sequence[Key | None]) -> None:
    earlier: dict[bytes, int] = {}
    for i, (item, parent) in enumerate(zip(items, parents, strict=True)):
        if parent is not None:
            key = as_key(parent)
            if key == item.key:
                raise BadInput(f"{key!r} cannot be its own parent")
            found = earlier.get(key)
            if found is None:
                item.outside_parent = key
            else:
                item.parent = found
        earlier.setdefault(item.key, i)
