"""Host memory that a GPU may read: the pages of a prefix's rows, registered with CUDA.

CUDA takes a range once and refuses another that shares a page with it, and units of a prefix lie
where the pool put them: so whole pages are registered, each once.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from moonpool.core.errors import RegisterRefused

_MAPPED: Final = 0x02  # cudaHostRegisterMapped
_READ_ONLY: Final = 0x08  # cudaHostRegisterReadOnly: the mapping cannot be written by us either


class Range(NamedTuple):
    """Addresses from `start` up to `stop`."""

    start: int
    stop: int


def page_ranges(ranges: Iterable[Range], page_bytes: int = mmap.PAGESIZE) -> list[Range]:
    """The pages that the ranges touch, as few ranges that share none."""
    found: list[Range] = []
    for start, stop in sorted(ranges):
        if stop <= start:
            continue
        first = start // page_bytes * page_bytes
        last = -(-stop // page_bytes) * page_bytes
        if found and first <= found[-1].stop:
            found[-1] = Range(found[-1].start, max(found[-1].stop, last))
        else:
            found.append(Range(first, last))
    return found


class RegisteredMemory:
    """`ranges` registered until `close`. Raises RegisterRefused, with none of them registered."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        import torch

        self._runtime: Any = torch.cuda.cudart()
        self._ranges: list[Range] = []
        for one in page_ranges(ranges):
            code = int(
                self._runtime.cudaHostRegister(
                    one.start, one.stop - one.start, _MAPPED | _READ_ONLY
                )
            )
            if code != 0:
                _take_error(torch)
                self.close()
                raise RegisterRefused(
                    f"CUDA does not register {one.stop - one.start} bytes of host memory: "
                    f"error {code}"
                )
            self._ranges.append(one)

    @property
    def nbytes(self) -> int:
        return sum(stop - start for start, stop in self._ranges)

    def close(self) -> None:
        while self._ranges:
            self._runtime.cudaHostUnregister(self._ranges.pop().start)


def _take_error(torch: Any) -> None:
    """CUDA keeps a refusal as the last error of this thread, and the next launch, whosever it is,
    reports and clears that. A launch of ours takes it."""
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda")
