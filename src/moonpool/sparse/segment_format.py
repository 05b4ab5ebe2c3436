"""The bytes of a sparse segment: one file a device, each with a signed header.

    header | page words u64 | page owners u32 | page orders u32 | prefix entries | leases | hints |
    index area [layer][page][index_page_bytes] | latent area [layer][page][page_bytes]

Every device has the same geometry; the tables between header and index area live on device 0 and
speak of the pages of all (page number = device * pages + place). A header never changes after
creation; what changes stands behind it. Pure: bytes in, geometry out.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec
import numpy as np

from moonpool import _core
from moonpool.core.errors import BadInput, SegmentDamaged
from moonpool.sparse.layout import SparseLayout

MAGIC: Final = b"MPSPARSE"
VERSION: Final = 1
HEADER_BYTES: Final = 4096
ALIGN: Final = 2 << 20  # of the areas: huge pages and device mappings begin there
INTERLEAVES: Final = ("none", "page", "request")
KEY_BYTES: Final = 32
NO_OWNER: Final = 0xFFFFFFFF

# Entry states. Only sealed ones are found by readers.
FREE, WRITING, SEALED, RETIRED = range(4)
# Page states, the low two bits of a page word; the generation stands above them.
PAGE_FREE, PAGE_WRITING, PAGE_SEALED = range(3)

ENTRY: Final = np.dtype(
    [
        ("key", "V32"),
        ("generation", "<u8"),
        ("state", "<u8"),
        ("tokens", "<u8"),  # published
        ("pages", "<u8"),
        ("used_ns", "<u8"),
        ("hint_tokens", "<u8"),  # of each layer
        ("request", "<u8"),  # which one it was, for interleaving
        ("spare", "V40"),
    ]
)
LEASE: Final = np.dtype([("entry", "<u8"), ("generation", "<u8"), ("until_ns", "<u8")])
_HEADER: Final = struct.Struct("<8sIIIIIIQIIIIII16s16sQ")


class Geometry(msgspec.Struct, frozen=True):
    """How one pool's devices are laid out; the same for all but `device`."""

    layout: SparseLayout
    pages: int
    """On each device."""
    devices: int
    device: int
    interleave: str
    entries: int
    leases: int
    hint_tokens: int
    """Room for a hint, in positions a layer."""
    pool_id: bytes
    model_id: bytes

    @property
    def pages_total(self) -> int:
        return self.pages * self.devices

    @property
    def words_offset(self) -> int:
        return HEADER_BYTES + 4096  # between them the marks that change: see `marks_offset`

    @property
    def marks_offset(self) -> int:
        """Two u64: a table change is under way; number of the latest request."""
        return HEADER_BYTES

    @property
    def owners_offset(self) -> int:
        return self.words_offset + 8 * self.pages_total

    @property
    def orders_offset(self) -> int:
        return self.owners_offset + 4 * self.pages_total

    @property
    def entries_offset(self) -> int:
        return _up(self.orders_offset + 4 * self.pages_total, 64)

    @property
    def leases_offset(self) -> int:
        return self.entries_offset + ENTRY.itemsize * self.entries

    @property
    def hints_offset(self) -> int:
        return _up(self.leases_offset + LEASE.itemsize * self.leases, 64)

    @property
    def index_offset(self) -> int:
        hints = 4 * self.hint_tokens * self.layout.layers * self.entries
        return _up(self.hints_offset + hints, ALIGN)

    @property
    def latent_offset(self) -> int:
        return _up(
            self.index_offset + self.layout.layers * self.pages * self.layout.index_page_bytes,
            ALIGN,
        )

    @property
    def file_bytes(self) -> int:
        return _up(
            self.latent_offset + self.layout.layers * self.pages * self.layout.page_bytes, ALIGN
        )

    @property
    def layer_stride(self) -> int:
        return self.pages * self.layout.page_bytes

    @property
    def index_layer_stride(self) -> int:
        return self.pages * self.layout.index_page_bytes


def encode(geometry: Geometry) -> bytes:
    """The header of one device, HEADER_BYTES long."""
    layout = geometry.layout
    fields = _HEADER.pack(
        MAGIC,
        VERSION,
        layout.layers,
        layout.entry_bytes,
        layout.index_bytes,
        layout.page_tokens,
        INTERLEAVES.index(geometry.interleave),
        geometry.pages,
        geometry.devices,
        geometry.device,
        geometry.entries,
        geometry.leases,
        geometry.hint_tokens,
        0,
        geometry.model_id,
        geometry.pool_id,
        geometry.file_bytes,
    )
    padded = fields.ljust(HEADER_BYTES - 4, b"\0")
    return padded + struct.pack("<I", _core.crc32c(padded))


def decode(header: bytes, file_bytes: int, name: str) -> Geometry:
    """The geometry a header tells. Raises SegmentDamaged for a foreign, damaged or truncated
    file."""
    if len(header) < HEADER_BYTES or header[:8] != MAGIC:
        raise SegmentDamaged(f"{name} is no sparse segment")
    version = struct.unpack_from("<I", header, 8)[0]
    if version != VERSION:
        raise SegmentDamaged(
            f"{name} is a sparse segment of version {version}; this Moonpool knows {VERSION}"
        )
    crc = struct.unpack_from("<I", header, HEADER_BYTES - 4)[0]
    if crc != _core.crc32c(header[: HEADER_BYTES - 4]):
        raise SegmentDamaged(f"{name}: the header's checksum is wrong")
    fields = _HEADER.unpack_from(header)
    try:
        layout = SparseLayout(fields[2], fields[3], fields[4], fields[5])
        geometry = Geometry(
            layout,
            fields[7],
            fields[8],
            fields[9],
            INTERLEAVES[fields[6]],
            fields[10],
            fields[11],
            fields[12],
            fields[15],
            fields[14],
        )
    except (BadInput, IndexError) as error:
        raise SegmentDamaged(f"{name}: the header makes no sense: {error}") from None
    if geometry.file_bytes != fields[16]:
        raise SegmentDamaged(f"{name}: the header's sizes do not fit each other")
    if file_bytes < geometry.file_bytes:
        raise SegmentDamaged(
            f"{name} is truncated: {file_bytes} bytes of {geometry.file_bytes}; create it anew"
        )
    return geometry


def _up(value: int, to: int) -> int:
    return -(-value // to) * to
