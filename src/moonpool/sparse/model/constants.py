"""Every number that the performance model takes from outside, with where it is from.

`published` is somebody's measurement, `specified` a data sheet, `assumed` our own guess where no
source says it. What is fitted or derived stands in no constant: `paper.py` computes it, and the
bench prints it. None of these devices is ours: whatever is computed from them is simulated.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Constant(NamedTuple):
    """`value` in `unit`; `kind` is published, specified or assumed."""

    name: str
    value: float
    unit: str
    kind: str
    source: str


_SAC: Final = "SAC, arXiv:2606.19746"
_BELUGA: Final = "Beluga, arXiv:2511.20172"
_GB: Final = 1e9

# --- devices and links ----------------------------------------------------------------------------

CXL_CPU: Final = Constant(
    "cxl_cpu", 46.2 * _GB, "B/s", "published", f"{_BELUGA}: reads of one x16 adapter by a CPU"
)
CXL_GPU: Final = Constant(
    "cxl_gpu",
    26.0 * _GB,
    "B/s",
    "published",
    f"{_BELUGA}: a GPU through the root complex, one adapter",
)
CXL_DEVICE: Final = Constant(
    "cxl_device", 22.5 * _GB, "B/s", "published", f"{_BELUGA}: one Type-3 device"
)
CXL_LOAD: Final = Constant(
    "cxl_load", 750e-9, "s", "published", f"{_BELUGA}: 64 bytes through an XC50256, at least"
)
PCIE5: Final = Constant(
    "pcie5", 55.4 * _GB, "B/s", "published", f"{_BELUGA}: host memory to a GPU, x16"
)
PCIE5_ROWS: Final = Constant(
    "pcie5_rows",
    37.0 * _GB,
    "B/s",
    "published",
    "ESS, arXiv:2512.10576: rows of 656 bytes gathered by a GPU from host memory",
)
GPU_COPY_64K_DRAM: Final = Constant(
    "gpu_copy_64k_dram", 10.32e-6, "s", "published", f"{_BELUGA}: 64 KiB from DRAM to a GPU"
)
GPU_COPY_64K_CXL: Final = Constant(
    "gpu_copy_64k_cxl", 11.73e-6, "s", "published", f"{_BELUGA}: 64 KiB from CXL to a GPU"
)
RDMA_CALL: Final = Constant(
    "rdma_call", 8.39e-6, "s", "published", f"{_BELUGA}: an RPC over a reliable connection"
)
RDMA_16K: Final = Constant(
    "rdma_16k", 10.55e-6, "s", "published", f"{_BELUGA}: 16 KiB into a GPU's memory"
)
RDMA_1024_PIECES: Final = Constant(
    "rdma_1024_pieces", 5260e-6, "s", "published", f"{_BELUGA}: 1,024 pieces of 160 bytes"
)
NIC_100: Final = Constant("nic_100", 12.5 * _GB, "B/s", "specified", "100 Gb/s, one port")
NIC_400: Final = Constant("nic_400", 50.0 * _GB, "B/s", "specified", "400 Gb/s, one port")
DDR5: Final = Constant("ddr5", 38.4 * _GB, "B/s", "specified", "DDR5-4800, one channel")
H20_MEMORY: Final = Constant("h20_memory", 4.0e12, "B/s", "specified", "H20, HBM3")

# --- SAC's set-up ---------------------------------------------------------------------------------

LAYERS: Final = Constant("layers", 61, "", "published", "DeepSeek-V3.2")
TOP_K: Final = Constant("top_k", 2048, "rows", "published", "DeepSeek-V3.2")
CLIENTS: Final = Constant("clients", 64, "", "published", f"{_SAC}: closed loop, main figure")
RANKS: Final = Constant("ranks", 8, "", "published", f"{_SAC}: DP attention over 8 H20")
OUTPUTS: Final = Constant("outputs", 1024, "tokens", "published", f"{_SAC}: output of a request")
ADAPTERS: Final = Constant("adapters", 2, "", "published", f"{_SAC}: one for each NUMA node")
DEVICES: Final = Constant("devices", 2, "", "published", f"{_SAC}: 2 TB from two Type-3 devices")
BUFFER_ROWS: Final = Constant("buffer_rows", 4096, "rows", "published", f"{_SAC}: smaller buffer")
BUFFER_ROWS_LARGE: Final = Constant(
    "buffer_rows_large", 6144, "rows", "published", f"{_SAC}: larger buffer"
)
WAVES: Final = Constant(
    "waves", 2, "", "assumed", "requests of each client one after the other; no source says it"
)

# --- what it reports: the first four calibrate or check, the next three are fitted, the last three
# are only compared with ---------------------------------------------------------------------------

SAC_TOKENS_PER_S: Final = Constant(
    "sac_tokens_per_s", 1800, "1/s", "published", f"{_SAC}: about, 128K, 64 clients"
)
LARGER_BUFFER: Final = Constant(
    "larger_buffer", 1.104, "x", "published", f"{_SAC}: throughput, 6K over 4K rows, mean"
)
OF_DRAM: Final = Constant("of_dram", 0.91, "x", "published", f"{_SAC}: throughput over local DRAM")
INTERLEAVING: Final = Constant(
    "interleaving", 1.092, "x", "published", f"{_SAC}: throughput over none, mean"
)
HEADLINE_THROUGHPUT: Final = Constant(
    "headline_throughput", 2.1, "x", "published", f"{_SAC}: over RDMA, round 2, mean 16K to 128K"
)
HEADLINE_TTFT: Final = Constant("headline_ttft", 9.7, "x", "published", f"{_SAC}: the same")
HEADLINE_TBT: Final = Constant("headline_tbt", 1.8, "x", "published", f"{_SAC}: the same")
LARGEST_32K: Final = Constant("largest_32k", 2.0, "x", "published", f"{_SAC}: largest gain, 32K")
LARGEST_64K: Final = Constant("largest_64k", 2.5, "x", "published", f"{_SAC}: largest gain, 64K")
LARGEST_128K: Final = Constant("largest_128k", 3.1, "x", "published", f"{_SAC}: largest gain, 128K")

CONSTANTS: Final = tuple(value for value in dict(globals()).values() if isinstance(value, Constant))
