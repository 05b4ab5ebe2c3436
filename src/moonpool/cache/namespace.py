"""Whose tokens these are: prefixes are shared inside a namespace and never across two."""

from __future__ import annotations

import struct
from functools import cached_property

import msgspec

from moonpool import _core


class Namespace(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What besides the tokens decides their keys and values: adapter, salt, tenant.

    None and "" differ, as in KeySpec. The namespace without any of them has the seed 0, so its
    routing chain is that of `_core.block_hashes_u64(tokens, page_size)`.
    """

    adapter: str | None = None
    """Fingerprint of a LoRA or other adapter; None is the base model."""
    salt: str | None = None
    """Separates what must not be shared, e.g. a request's `cache_salt`."""
    tenant: str | None = None

    @cached_property
    def encoded(self) -> bytes:
        """One spelling for each namespace, and none for two of them; empty for the plain one."""
        values = (self.adapter, self.salt, self.tenant)
        return b"".join(map(_tagged, values)) if values != (None, None, None) else b""

    @staticmethod
    def decoded(encoded: bytes) -> Namespace:
        """The namespace of this spelling, one that `encoded` gave."""
        if not encoded:
            return PLAIN
        values: list[str | None] = []
        while encoded:
            if encoded.startswith(b"n"):
                values.append(None)
                encoded = encoded[1:]
            else:
                end = 5 + int(struct.unpack_from("<I", encoded, 1)[0])
                values.append(encoded[5:end].decode())
                encoded = encoded[end:]
        adapter, salt, tenant = values
        return Namespace(adapter=adapter, salt=salt, tenant=tenant)

    @cached_property
    def seed(self) -> int:
        """What stands before the first value of its routing chain, 64 bits."""
        return int.from_bytes(_core.sha256(self.encoded)[:8], "little") if self.encoded else 0


def _tagged(value: str | None) -> bytes:
    if value is None:
        return b"n"
    text = value.encode()
    return b"s" + struct.pack("<I", len(text)) + text


PLAIN = Namespace()
