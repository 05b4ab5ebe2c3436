"""More address space than memory: the same few pages mapped again and again, one after another."""

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from moonpool.transfer.base import U8

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_longlong,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FIXED, _PAGES_BYTES = 0x10, 16 << 20


@contextmanager
def aliased(nbytes: int) -> Iterator[U8]:
    """uint8[nbytes] over 16 MiB of memory: byte i is byte i % 16 MiB. `nbytes` is a multiple of
    the page size; nothing may refer to the array afterwards."""
    descriptor = os.memfd_create("aliased")
    os.ftruncate(descriptor, _PAGES_BYTES)
    base = _mapped(None, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    for start in range(0, nbytes, _PAGES_BYTES):
        size = min(_PAGES_BYTES, nbytes - start)
        _mapped(base + start, size, mmap.MAP_SHARED | _MAP_FIXED, descriptor)
    os.close(descriptor)
    try:
        yield np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(base))
    finally:
        _libc.munmap(base, nbytes)


def _mapped(address: int | None, nbytes: int, flags: int, descriptor: int) -> int:
    where = _libc.mmap(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0)
    assert where not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
    return int(where)
