"""Two processes share objects through a pool: one puts, the other looks at them without a copy.

moonpool up                                   # in one terminal
python examples/two_processes.py              # in another; MOONPOOL_MASTER for another address
"""

import subprocess
import sys
import zlib

import numpy as np

import moonpool

COUNT, BLOCK_BYTES = 8, 1 << 20
KEYS = [f"two-processes/{i}" for i in range(COUNT)]


def write() -> None:
    with moonpool.connect() as pool:
        pool.remove_prefix("two-processes/")
        blocks = [np.full(BLOCK_BYTES, i, np.uint8) for i in range(COUNT)]
        for key, result in zip(KEYS, pool.put_many(KEYS, blocks), strict=True):
            result.raise_for_status(key.encode())
        print(f"writer: {COUNT} blocks of {BLOCK_BYTES >> 20} MiB are stored")


def read() -> None:
    with moonpool.connect() as pool:
        for i, key in enumerate(KEYS):
            view = pool.view(key)
            with view as block:
                assert block is not None, view.miss
                assert zlib.crc32(block) == zlib.crc32(bytes([i]) * BLOCK_BYTES)
                where = "in place" if view.zero_copy else "as a copy"
            print(f"reader: {key} read {where}")


def main() -> None:
    write()
    subprocess.run([sys.executable, __file__, "read"], check=True)


if __name__ == "__main__":
    read() if sys.argv[1:] == ["read"] else main()
