"""Flush hooks: what makes stores to a segment seen by other hosts, and theirs by us, where hardware
does not. Copies of the local transport call them; who works in the memory itself calls them, too.

A whole cache line (or page) is the unit: data of two writers must not share one.
"""

import ctypes
import mmap
import os
from typing import Final, Protocol

import numpy as np

from moonpool import _core
from moonpool.core.errors import BadInput, did_you_mean
from moonpool.transfer.base import U8, U64

_MS_SYNC: Final = 4


class FlushHook(Protocol):
    """`memory` is the whole segment; offsets and lengths are u64[n], in bytes, inside it."""

    def before_read(self, memory: U8, offsets: U64, lengths: U64) -> None:
        """Called before these blocks are loaded: makes others' finished stores seen."""
        ...

    def after_write(self, memory: U8, offsets: U64, lengths: U64) -> None:
        """Called after these blocks were stored; when it returns, others can see them."""
        ...


class LineFlush:
    """For memory several hosts map without coherent caches: lines written back, lines dropped."""

    def before_read(self, memory: U8, offsets: U64, lengths: U64) -> None:
        _core.invalidate(memory, offsets, lengths)

    def after_write(self, memory: U8, offsets: U64, lengths: U64) -> None:
        _core.write_back(memory, offsets, lengths)


class FileSync:
    """For a mapped file that must outlive this host: pages go to the disk with msync. Raises
    OSError when the disk fails. Reads need nothing."""

    def before_read(self, memory: U8, offsets: U64, lengths: U64) -> None:
        pass

    def after_write(self, memory: U8, offsets: U64, lengths: U64) -> None:
        base, page = memory.ctypes.data, mmap.PAGESIZE
        for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
            start = (base + offset) // page * page
            size = ctypes.c_size_t(base + offset + length - start)
            if _libc.msync(ctypes.c_void_p(start), size, _MS_SYNC) != 0:
                number = ctypes.get_errno()
                raise OSError(number, f"msync: {os.strerror(number)}")


FLUSHES: Final[dict[str, type[LineFlush] | type[FileSync]]] = {"lines": LineFlush, "sync": FileSync}

_libc = ctypes.CDLL(None, use_errno=True)


def flush_of(flush: "FlushHook | str | None") -> FlushHook | None:
    """A hook by name ("lines", "sync"), or the hook itself. Raises BadInput."""
    if flush is None or not isinstance(flush, str):
        return flush
    if flush not in FLUSHES:
        raise BadInput(
            f"unknown flush {flush!r}; know {', '.join(FLUSHES)}.{did_you_mean(flush, FLUSHES)}"
        )
    return FLUSHES[flush]()


def one_block(offset: int, length: int) -> tuple[U64, U64]:
    """Offsets and lengths of a single block."""
    return np.array([offset], np.uint64), np.array([length], np.uint64)
