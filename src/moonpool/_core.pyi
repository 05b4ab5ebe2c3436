"""Types of Moonpool's native core. Each room keeps its own section, in the order of module.cpp."""

from typing_extensions import Buffer

# ---- crc: CRC-32C and copies that compute it ----

def crc32c(data: Buffer, seed: int = 0) -> int: ...
