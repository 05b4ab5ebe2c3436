"""What kind of memory a segment is, as far as cost goes; rough figures, to choose by."""

from enum import StrEnum
from typing import Final, NamedTuple


class CostClass(StrEnum):
    """DRAM: this host's memory. CXL: memory behind a CXL link or a dax device, shared or not.
    FILE: the page cache of a mapped file, or blocks of a file. VRAM: a device's memory."""

    DRAM = "dram"
    CXL = "cxl"
    FILE = "file"
    VRAM = "vram"


class MediumCost(NamedTuple):
    """What a class costs beyond DRAM: microseconds a block, seconds a GB."""

    block_us: float
    s_per_gb: float


MEDIUM_COSTS: Final = {
    CostClass.DRAM: MediumCost(0.0, 0.0),
    CostClass.CXL: MediumCost(0.3, 0.05),
    CostClass.FILE: MediumCost(1.0, 0.2),
    CostClass.VRAM: MediumCost(2.0, 0.0),
}
