"""Memory that says which bytes it holds: page number p is 512 times the number p.

So whoever reads a block can tell whether every byte of it is right, without a second copy.
"""

import ctypes
import mmap
from collections.abc import Sequence

PAGE = 4096


class Memory:
    """Anonymous memory of whole pages at a fixed address, all of it touched."""

    def __init__(self, nbytes: int) -> None:
        assert nbytes % PAGE == 0, nbytes
        self._memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.nbytes = nbytes
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.clear()

    def clear(self) -> None:
        """Zeros everywhere."""
        ctypes.memset(self.address, 0, self.nbytes)

    def write(self, offset: int, content: bytes) -> None:
        self._memory[offset : offset + len(content)] = content

    def holds(self, offset: int, content: bytes) -> bool:
        """Are these the bytes at `offset`?"""
        return self._memory[offset : offset + len(content)] == content

    def took(self, numbers: Sequence[int], nbytes: int) -> bool:
        """Were these blocks read to its start, one after another? It is clear afterwards."""
        good = all(self.holds(i * nbytes, block(n, nbytes)) for i, n in enumerate(numbers))
        self.clear()
        return good


def pages(first: int, nbytes: int) -> bytes:
    """The content of `nbytes` from page `first` on."""
    return b"".join(
        (first + page).to_bytes(8, "little") * (PAGE // 8) for page in range(nbytes // PAGE)
    )


def block(number: int, nbytes: int) -> bytes:
    """The content of block `number`, where blocks of `nbytes` lie one after another."""
    return pages(number * (nbytes // PAGE), nbytes)


def blocks_text(count: int, nbytes: int) -> str:
    """As cases are named: '64 KiB', '32 x 4 KiB'."""
    each = f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
    return f"{count} x {each}" if count > 1 else each
