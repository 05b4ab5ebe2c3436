"""Which pages are free: a stack of page ids with a generation each.

O(1) a page, no search. A page's generation is the number of its allocations: whoever noted it with
the id can tell later whether the page is still the one it meant.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moonpool.cache.base import I32
from moonpool.core.errors import BadInput, OutOfPages


class PageAllocator:
    """Pages 0 to `pages` - 1, all free at first. Not thread-safe."""

    def __init__(self, pages: int) -> None:
        if not 1 <= pages < 2**31:
            raise BadInput(f"a pool has 1 to {2**31 - 1} pages, not {pages}")
        self.pages = pages
        self.generations: npt.NDArray[np.uint32] = np.zeros(pages, np.uint32)
        """uint32[pages]; to be read only."""
        self._stack: I32 = np.arange(pages - 1, -1, -1, dtype=np.int32)
        self._free = pages
        self._used: npt.NDArray[np.bool_] = np.zeros(pages, np.bool_)
        self._mark: I32 = np.zeros(pages, np.int32)

    @property
    def free_pages(self) -> int:
        return self._free

    @property
    def used_pages(self) -> int:
        return self.pages - self._free

    def can_allocate(self, count: int) -> bool:
        return count <= self._free

    def allocate(self, count: int) -> I32:
        """int32[count] page ids, the most recently freed ones first. Raises OutOfPages."""
        if not 0 <= count <= self._free:
            raise OutOfPages(f"{count} pages asked, {self._free} of {self.pages} are free")
        taken = self._stack[self._free - count : self._free][::-1].copy()
        self._free -= count
        self._used[taken] = True
        self.generations[taken] += 1
        return taken

    def free(self, pages: I32) -> None:
        """Gives pages back. Raises BadInput, with nothing done, for one that is not in use."""
        count = len(pages)
        if count == 0:
            return
        if int(pages.min()) < 0 or int(pages.max()) >= self.pages:
            raise BadInput(f"page {_outside(pages, self.pages)} is none of 0 to {self.pages - 1}")
        order = np.arange(count, dtype=np.int32)
        self._mark[pages] = order
        wrong = ~self._used[pages] | (self._mark[pages] != order)
        if wrong.any():
            raise BadInput(f"page {int(pages[wrong][0])} is freed twice")
        self._used[pages] = False
        self._stack[self._free : self._free + count] = pages
        self._free += count

    def is_current(self, page: int, generation: int) -> bool:
        """Whether `page` is in use, and has been since it had this generation."""
        return bool(self._used[page]) and int(self.generations[page]) == generation

    def free_list(self) -> I32:
        """The free pages, int32[free_pages], for checks."""
        return self._stack[: self._free].copy()

    def check(self) -> None:
        """Raises AssertionError when the stack and the marks of use disagree."""
        free = self.free_list()
        assert len(np.unique(free)) == self._free, "a page is free twice"
        assert not self._used[free].any(), "a free page is marked as used"
        assert int(self._used.sum()) == self.used_pages, "a page is neither free nor used"


def _outside(pages: I32, limit: int) -> int:
    return int(pages[(pages < 0) | (pages >= limit)][0])
