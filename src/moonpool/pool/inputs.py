"""What callers may hand in, brought into one form. Bad input raises before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from moonpool import _core
from moonpool.core.clock import SystemClock
from moonpool.core.errors import BadInput, BadKey, BadSize
from moonpool.pool.columns import pack_keys
from moonpool.pool.messages import KeyColumn
from moonpool.pool.ports import Buffer
from moonpool.pool.protocol_reserve import NO_PARENT, PutItem, PutOptions

KEY_BYTES_MAX = 1024
REPLICAS_MAX = 8  # as the catalog's replicas_max
Key = str | bytes
Pin = Literal["soft", "hard"] | None
_PINS: dict[str | None, int] = {None: 0, "soft": 1, "hard": 2}


def as_key(key: Key) -> bytes:
    """A key is 1 to 1,024 bytes; text is taken as UTF-8. Raises BadKey."""
    if type(key) is str:
        key = key.encode()
    elif type(key) is not bytes:
        if not isinstance(key, str | bytes | bytearray | memoryview):
            raise BadKey(f"a key is str or bytes, not {type(key).__name__}")
        key = key.encode() if isinstance(key, str) else bytes(key)
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise BadKey(f"a key of {len(key)} bytes; it takes 1 to {KEY_BYTES_MAX}")
    return key


def as_keys(keys: Sequence[Key]) -> list[bytes]:
    if isinstance(keys, str | bytes):
        raise BadKey("a sequence of keys is needed, not one key")
    encoded = _core.encode_keys(keys) if type(keys) is list else None
    return [as_key(key) for key in keys] if encoded is None else encoded


def as_key_column(keys: Sequence[Key]) -> KeyColumn:
    """The same in the form they travel in."""
    packed = _core.pack_keys(keys) if type(keys) is list else None
    return pack_keys(as_keys(keys)) if packed is None else KeyColumn(*packed)


def as_source(value: Buffer) -> tuple[Buffer, int]:
    """A readable, C-contiguous buffer and its bytes. Raises BadInput."""
    if type(value) is bytes:
        return value, len(value)
    if not isinstance(value, bytes | bytearray | memoryview) and hasattr(value, "detach"):
        value = value.detach().numpy()  # a torch tensor on the CPU, without importing torch
    try:
        view = memoryview(value)
    except TypeError:
        raise BadInput(
            f"a value needs the buffer protocol (bytes, memoryview, numpy), "
            f"{type(value).__name__} has none"
        ) from None
    if not view.c_contiguous:
        raise BadInput("a value must be C-contiguous; numpy.ascontiguousarray makes it so")
    return value, view.nbytes


def as_target(buffer: Buffer) -> Buffer:
    """A writable, C-contiguous buffer. Raises BadInput."""
    if type(buffer) is bytearray:
        return buffer
    if not isinstance(buffer, bytearray | memoryview) and hasattr(buffer, "detach"):
        buffer = buffer.detach().numpy()
    try:
        view = memoryview(buffer)
    except TypeError:
        raise BadInput(
            f"a buffer needs the buffer protocol, {type(buffer).__name__} has none"
        ) from None
    if view.readonly:
        raise BadInput("the buffer is read-only; give a bytearray or a writable array")
    if not view.c_contiguous:
        raise BadInput("the buffer must be C-contiguous")
    return buffer


def as_pin(pin: Pin) -> int:
    try:
        return _PINS[pin]
    except KeyError:
        raise BadInput(f"pin is None, 'soft' or 'hard', not {pin!r}") from None


def as_replicas(replicas: int, min_replicas: int | None) -> tuple[int, int]:
    if not 1 <= replicas <= REPLICAS_MAX:
        raise BadInput(f"replicas must be 1 to {REPLICAS_MAX}, not {replicas}")
    least = replicas if min_replicas is None else min_replicas
    if not 1 <= least <= replicas:
        raise BadInput(f"min_replicas must be 1 to {replicas}, not {least}")
    return replicas, least


def as_expiry_ms(ttl_s: float | None) -> int:
    """The wall-clock moment (ms since 1970) a time to live ends at; 0: never."""
    if ttl_s is None:
        return 0
    if not ttl_s > 0:
        raise BadInput(f"ttl_s must be positive, not {ttl_s!r}")
    return SystemClock().wall_ms() + max(1, int(ttl_s * 1000))


def as_options(
    replicas: int,
    min_replicas: int | None,
    pin: Pin,
    ttl_s: float | None,
    chain: bool,
    replace: bool,
) -> PutOptions:
    """Raises BadInput."""
    count, least = as_replicas(replicas, min_replicas)
    return PutOptions(count, least, as_pin(pin), as_expiry_ms(ttl_s), chain=chain, replace=replace)


def as_items(
    keys: Sequence[Key],
    values: Sequence[Buffer],
    parents: Sequence[Key | None] | Literal["chain"] | None,
    parent: Key | None = None,
) -> list[PutItem]:
    """Items of a batch put. `parents`: one key or None per item, or "chain": each item's parent is
    the item before, the first one's is `parent`. A parent that is an earlier item of the batch
    is found there. Raises BadKey, BadInput, BadSize."""
    named = as_keys(keys)
    if len(values) != len(named):
        raise BadSize(f"{len(named)} keys but {len(values)} values")
    items = []
    for key, value in zip(named, values, strict=True):
        source, size = as_source(value)
        items.append(PutItem(key, source, size))
    if parents == "chain":
        for i, item in enumerate(items):
            item.parent = i - 1 if i else NO_PARENT
        if items and parent is not None:
            items[0].outside_parent = as_key(parent)
    elif parents is not None:
        if isinstance(parents, str) or len(parents) != len(items):
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
