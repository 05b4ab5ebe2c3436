"""The page in which an engine describes itself to its peers: one small region, read over the wire.

    magic 4 B | CRC-32C u32 of the body | length u32 of the body | body (msgpack of EngineInfo)

The owner overwrites it in place; a reader that meets a half-written one sees the CRC differ and
reads again.
"""

import struct
from typing import Any

import msgspec
import numpy as np

from moonpool import _core
from moonpool.core.errors import BadFrame, BadInput
from moonpool.transfer.base import U8
from moonpool.transfer.cost import CostClass
from moonpool.transfer.topology import Nic

PAGE_NAME = "moonpool.engine"
PAGE_BYTES = 65_536
_MAGIC = b"MPE1"
_HEADER = struct.Struct("<4sII")


class LayoutInfo(msgspec.Struct, array_like=True, frozen=True):
    """A named layout: its segment, and block_bytes, stride and offset in bytes."""

    segment: str
    block_bytes: int
    stride: int
    offset: int


class PlaceInfo(msgspec.Struct, array_like=True, frozen=True):
    """A segment's NUMA node (-1: not known), device and cost class."""

    numa_node: int
    device: str
    cost_class: CostClass


class NixlInfo(msgspec.Struct, array_like=True, frozen=True):
    """How to reach the peer through NIXL: its agent, the agent's metadata, and where segments lie
    in its address space, as (address, bytes)."""

    agent: str
    metadata: bytes
    segments: dict[str, tuple[int, int]]


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`host` is the host identity, `unix_path` where descriptors are handed out ('' nowhere);
    `addresses` is where the engine listens, "host:port" each, `nics` its interfaces there,
    `places` where segments are that are not just somewhere in DRAM, `planes` of layouts that have
    several: how many, and how far apart; `nixl` is None where it is off."""

    host: str
    pid: int
    unix_path: str = ""
    layouts: dict[str, LayoutInfo] = {}
    addresses: list[str] = []
    nics: dict[str, Nic] = {}
    places: dict[str, PlaceInfo] = {}
    planes: dict[str, tuple[int, int]] = {}
    nixl: NixlInfo | None = None


_decoder = msgspec.msgpack.Decoder(EngineInfo)


class InfoPage:
    """The owner's side: `memory` is uint8[PAGE_BYTES], registered under PAGE_NAME."""

    def __init__(self) -> None:
        self.memory: U8 = np.zeros(PAGE_BYTES, dtype=np.uint8)

    def publish(self, info: EngineInfo) -> None:
        """Replaces the page's content. Raises BadInput when it does not fit; the old one stays."""
        body = msgspec.msgpack.encode(info)
        if len(body) > PAGE_BYTES - _HEADER.size:
            raise BadInput(
                f"{len(info.layouts)} named layouts{_of_nixl(info)} do not fit into {PAGE_BYTES} "
                f"bytes; use fewer or shorter names"
            )
        text = _HEADER.pack(_MAGIC, _core.crc32c(body), len(body)) + body
        self.memory[: len(text)] = np.frombuffer(text, dtype=np.uint8)


def _of_nixl(info: EngineInfo) -> str:
    return f" and {len(info.nixl.segments)} segments offered through NIXL" if info.nixl else ""


def read_page(page: Any) -> EngineInfo:
    """What a peer's page says. Raises BadFrame when it is torn, damaged or something else."""
    raw = bytes(page)
    if len(raw) < _HEADER.size:
        raise BadFrame(f"an info page of {len(raw)} bytes is too short")
    magic, crc, length = _HEADER.unpack_from(raw)
    body = raw[_HEADER.size : _HEADER.size + length]
    if magic != _MAGIC or len(body) != length or _core.crc32c(body) != crc:
        raise BadFrame("the peer's info page is half-written or damaged")
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise BadFrame(f"the peer's info page is not understood: {error}") from None
