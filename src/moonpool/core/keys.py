"""Canonical keys of KV blocks (design D11): whoever stores the same thing names it the same.

    mp1/<label>/<specification>/<block>

`label` is for people: up to 16 characters of the model's name. `specification` is the first half of
the SHA-256 over every field of the KeySpec, and `block` the content chain's digest (SHA-256 over
the digest before and the block's tokens), both in URL-safe base64. Base64 and not hex, because 87
bytes instead of 113 let a key and its parent lie inline in a segment's slot; not raw bytes, because
`moonpool ls` and logs show them. Golden vectors pin the format; a change needs a new `mp2`.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from moonpool import _core
from moonpool.core.errors import BadInput, BadKey
from moonpool.core.key_batch import KeyBatch, validate_key

HASH_VERSION = 1
"""The content chain of native/block_hash.hpp."""

_FORMAT = "mp1"
_LABEL_CHARS = 16
_FIELD_BYTES_MAX = 4096
_BLOCK_TOKENS_MAX = 1 << 20
_DIGEST_BYTES = 32
_DIGEST_CHARS = 43
_URL_SAFE = bytes.maketrans(b"+/", b"-_")

Tokens = npt.NDArray[np.uint32] | Sequence[int]


class KeySpec(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All that decides whether the stored bytes of one engine fit another.

    Each field is part of every key, tagged with its name, type and length: `adapter="x"` and
    `salt="x"` differ, and so do None and "". Raises BadInput on values that make no sense.
    """

    model: str
    """Fingerprint of the weights, e.g. "org/name@revision" or a digest; not just a display name."""
    dtype: str
    """Element type of the stored cache, e.g. "bfloat16", "fp8_e4m3"."""
    layout: str
    """Order of the axes inside a stored block, e.g. "layer,kv,token,head,dim"."""
    block_size: int
    """Tokens a block."""
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    adapter: str | None = None
    """Fingerprint of a LoRA or other adapter, with its version; None is the base model."""
    salt: str | None = None
    """Separates what must not be shared; it cannot be read back from a key."""
    tenant: str | None = None
    hash_version: int = HASH_VERSION

    def __post_init__(self) -> None:
        for name in ("model", "dtype", "layout"):
            _check_text(name, getattr(self, name), empty=False)
        for name in ("adapter", "salt", "tenant"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name), empty=True)
        _check_range("block_size", self.block_size, 1, _BLOCK_TOKENS_MAX)
        for kind in ("tp", "pp"):
            size = getattr(self, f"{kind}_size")
            _check_range(f"{kind}_size", size, 1, 2**16)
            _check_range(f"{kind}_rank", getattr(self, f"{kind}_rank"), 0, size - 1)
        if self.hash_version != HASH_VERSION:
            raise BadInput(f"hash_version is {HASH_VERSION} here, not {self.hash_version!r}")

    @cached_property
    def prefix(self) -> bytes:
        """What all keys of this specification begin with, and those of no other."""
        name = re.sub(r"[^A-Za-z0-9._-]", "-", self.model.rsplit("/", 1)[-1])[:_LABEL_CHARS]
        digest = base64.urlsafe_b64encode(_core.sha256(self._canonical())[:16]).rstrip(b"=")
        return b"/".join([_FORMAT.encode(), name.encode() or b"-", digest, b""])

    def keys(self, tokens: Tokens, parent: bytes | None = None) -> KeyBatch:
        """Keys of the whole blocks of `tokens` (u32), in order; a shorter last block has none.

        `parent` is the key of the block before the first, for a sequence that grew. Raises BadKey
        when it is not one of this specification, BadInput for tokens that are not u32.
        """
        before = b"" if parent is None else self.digest(parent)
        return self._name(_core.block_hashes_sha256(as_token_ids(tokens), self.block_size, before))

    def keys_of(self, digests: Sequence[bytes]) -> KeyBatch:
        """Keys of blocks that another chain of hashes names, an engine's own: 32 bytes each.

        The chain is not one of `keys`, so its name belongs into `layout`. Raises BadInput.
        """
        if any(len(digest) != _DIGEST_BYTES for digest in digests):
            raise BadInput(f"a block's digest has {_DIGEST_BYTES} bytes")
        joined = np.frombuffer(b"".join(digests), np.uint8)
        return self._name(joined.reshape(len(digests), _DIGEST_BYTES))

    def digest(self, key: bytes) -> bytes:
        """The chain digest (32 bytes) that a key of this specification holds. Raises BadKey."""
        block = validate_key(key).removeprefix(self.prefix)
        if len(block) == _DIGEST_CHARS and len(key) == len(self.prefix) + _DIGEST_CHARS:
            try:
                digest = base64.b64decode(block + b"=", altchars=b"-_", validate=True)
            except binascii.Error:
                digest = b""
            # The last character carries two spare bits; only one spelling of a digest is a key.
            if base64.urlsafe_b64encode(digest)[:-1] == block:
                return digest
        raise BadKey(f"{key!r} is no key of this specification ({self.prefix!r}...)")

    def _name(self, digests: npt.NDArray[np.uint8]) -> KeyBatch:
        count, prefix = len(digests), np.frombuffer(self.prefix, np.uint8)
        length = len(prefix) + _DIGEST_CHARS
        if count * length >= 2**32:
            raise BadInput(f"{count} blocks at once are too many for one batch; ask in parts")
        rows = np.empty((count, length), np.uint8)
        rows[:, : len(prefix)] = prefix
        rows[:, len(prefix) :] = _base64_rows(digests)
        ends = np.arange(1, count + 1, dtype=np.uint32) * np.uint32(length)
        return KeyBatch(rows.tobytes(), ends)

    def _canonical(self) -> bytes:
        parts = [b"moonpool key specification 1\n"]
        for name in self.__struct_fields__:
            parts += [_tagged(name), _tagged(getattr(self, name))]
        return b"".join(parts)


def _tagged(value: str | int | None) -> bytes:
    """Type and length before the value: no two sequences of values share an encoding."""
    if value is None:
        return b"n"
    if isinstance(value, int):
        return b"i" + struct.pack("<q", value)
    text = value.encode()
    return b"s" + struct.pack("<I", len(text)) + text


def _check_text(name: str, value: object, empty: bool) -> None:
    if not isinstance(value, str):
        raise BadInput(f"KeySpec.{name} is text, not {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise BadInput(f"KeySpec.{name} is not valid Unicode: {value!r}") from error
    if (size == 0 and not empty) or size > _FIELD_BYTES_MAX:
        low = 0 if empty else 1
        raise BadInput(f"KeySpec.{name} has {low} to {_FIELD_BYTES_MAX} bytes, not {size}")


def _check_range(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadInput(f"KeySpec.{name} is a number from {low} to {high}, not {value!r}")


def as_token_ids(tokens: object) -> npt.NDArray[np.uint32]:
    """Token ids as a contiguous uint32 array, without a copy where they are one.

    Takes numpy arrays, CPU tensors and sequences. Raises BadInput for what is no list of u32.
    """
    try:
        array = np.asarray(tokens)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise BadInput(f"token ids are u32[n]: {error}") from error
    if array.ndim != 1:
        raise BadInput(f"token ids are u32[n], not of shape {list(array.shape)}")
    if array.dtype == np.uint32 or array.size == 0:
        return np.ascontiguousarray(array, np.uint32)
    if array.dtype.kind not in "iu":
        raise BadInput(f"token ids are u32[n], not {array.dtype}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= 2**32:
        raise BadInput(f"token ids are u32[n]; found {low if low < 0 else high}")
    return array.astype(np.uint32)


def _base64_rows(digests: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """u8[n, 32] to u8[n, 43]: URL-safe base64 of each row without its padding."""
    padded = np.zeros((len(digests), 33), np.uint8)  # a multiple of three, so rows do not mix
    padded[:, :32] = digests
    text = binascii.b2a_base64(padded.tobytes(), newline=False).translate(_URL_SAFE)
    return np.frombuffer(text, np.uint8).reshape(len(digests), 44)[:, :_DIGEST_CHARS]
