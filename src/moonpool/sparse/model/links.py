"""What moving a prefix's bytes costs over one link: whole, or some rows. Pure arithmetic.

    bulk     calls * call_s + bytes / bulk_bytes_per_s
    gather   calls * call_s + rows * row_s + bytes / gather_bytes_per_s

LINKS are those that we do not have, from constants.py: simulated. What we have is measured, and
held against a model of its own in `observed.py`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from moonpool.sparse.layout import INDEX_KEY_BYTES
from moonpool.sparse.model import constants as c


class Link(NamedTuple):
    """Seconds of a call and of a row, bytes a second of rows and of what lies in order."""

    call_s: float
    row_s: float
    gather_bytes_per_s: float
    bulk_bytes_per_s: float


class Prefix(NamedTuple):
    """`tokens` rows of `row_bytes` in each of `layers`; a step reads `top_k` of each."""

    tokens: int
    row_bytes: int
    layers: int = int(c.LAYERS.value)
    top_k: int = int(c.TOP_K.value)

    @property
    def full_bytes(self) -> int:
        return self.tokens * self.row_bytes * self.layers

    @property
    def keys_bytes(self) -> int:
        return self.tokens * INDEX_KEY_BYTES * self.layers

    @property
    def step_rows(self) -> int:
        return self.layers * min(self.top_k, self.tokens)

    @property
    def ceiling(self) -> float:
        """The most that on-demand gains when its index keys are fetched, too."""
        return 1 + self.row_bytes / INDEX_KEY_BYTES


class FirstStep(NamedTuple):
    """Seconds until a lone request has what its first step needs."""

    full_s: float
    keys_s: float
    step_s: float

    @property
    def resident_ratio(self) -> float:
        """Full fetch over on-demand, index keys in place already."""
        return self.full_s / self.step_s

    @property
    def fetched_ratio(self) -> float:
        """The same with the keys fetched in both."""
        return (self.full_s + self.keys_s) / (self.step_s + self.keys_s)


def first_step(prefix: Prefix, link: Link) -> FirstStep:
    """Rows layer after layer, as their indices become known; keys and whole rows by layer, too."""
    calls_s = prefix.layers * link.call_s
    rows = prefix.step_rows
    step_s = calls_s + rows * link.row_s + rows * prefix.row_bytes / link.gather_bytes_per_s
    full_s = calls_s + prefix.full_bytes / link.bulk_bytes_per_s
    keys_s = calls_s + prefix.keys_bytes / link.bulk_bytes_per_s
    return FirstStep(full_s, keys_s, step_s)


_GPU_CALL_S: Final = c.GPU_COPY_64K_DRAM.value - 65536 / c.PCIE5.value
# A gathering GPU reaches this part of a link's rate with rows of 656 bytes.
_ROWS_OF_LINK: Final = c.PCIE5_ROWS.value / c.PCIE5.value
_RDMA_ROW_S: Final = c.RDMA_1024_PIECES.value / 1024

LINKS: Final = {
    "dram-gpu": Link(_GPU_CALL_S, 0.0, c.PCIE5_ROWS.value, c.PCIE5.value),
    "cxl-gpu": Link(_GPU_CALL_S, 0.0, _ROWS_OF_LINK * c.CXL_GPU.value, c.CXL_GPU.value),
    "cxl-cpu": Link(c.CXL_LOAD.value, 0.0, c.CXL_CPU.value, c.CXL_CPU.value),
    "rdma-100": Link(c.RDMA_CALL.value, _RDMA_ROW_S, c.NIC_100.value, c.NIC_100.value),
    # Packed by a server on the other side, as our TCP gather does: one call, one send.
    "rdma-100-packed": Link(c.RDMA_CALL.value, 0.0, c.NIC_100.value, c.NIC_100.value),
    "rdma-400-packed": Link(c.RDMA_CALL.value, 0.0, c.NIC_400.value, c.NIC_400.value),
}


class Check(NamedTuple):
    """A published figure that no constant was taken from, beside what the model says."""

    name: str
    model: float
    published: float

    @property
    def error(self) -> float:
        return self.model / self.published - 1


def link_checks() -> list[Check]:
    """Small transfers that were measured by others."""
    gpu = LINKS["cxl-gpu"]
    rdma = LINKS["rdma-100-packed"]
    return [
        Check(
            "64 KiB from CXL to a GPU, s",
            gpu.call_s + 65536 / gpu.bulk_bytes_per_s,
            c.GPU_COPY_64K_CXL.value,
        ),
        Check(
            "16 KiB by RDMA to a GPU, s",
            rdma.call_s + 16384 / rdma.bulk_bytes_per_s,
            c.RDMA_16K.value,
        ),
    ]
