"""Free pages: each id has one owner, and a generation for those who noted it."""

from __future__ import annotations

import numpy as np
import pytest

from moonpool.cache import PageAllocator
from moonpool.core.errors import BadInput, OutOfPages


def test_every_page_once() -> None:
    allocator = PageAllocator(8)
    taken = np.concatenate([allocator.allocate(3), allocator.allocate(5)])
    assert sorted(taken.tolist()) == list(range(8))
    assert (allocator.free_pages, allocator.used_pages) == (0, 8)
    allocator.check()


def test_a_refusal_takes_nothing() -> None:
    allocator = PageAllocator(4)
    allocator.allocate(3)
    assert not allocator.can_allocate(2)
    with pytest.raises(OutOfPages, match="2 pages asked, 1 of 4 are free"):
        allocator.allocate(2)
    assert allocator.free_pages == 1
    assert allocator.can_allocate(1)


def test_a_generation_tells_a_page_from_its_earlier_self() -> None:
    allocator = PageAllocator(1)
    page = allocator.allocate(1)
    noted = int(allocator.generations[page[0]])
    assert allocator.is_current(0, noted)
    allocator.free(page)
    assert not allocator.is_current(0, noted)
    allocator.allocate(1)
    assert not allocator.is_current(0, noted)


@pytest.mark.parametrize("bad", [[0, 0], [1], [0, 7], [-1]])
def test_what_cannot_be_freed_changes_nothing(bad: list[int]) -> None:
    allocator = PageAllocator(4)
    assert allocator.allocate(1).tolist() == [0]
    with pytest.raises(BadInput):
        allocator.free(np.array(bad, np.int32))
    allocator.check()
    assert allocator.used_pages == 1


def test_none_is_freed_without_a_word() -> None:
    allocator = PageAllocator(4)
    allocator.free(np.zeros(0, np.int32))
    assert allocator.allocate(0).tolist() == []


def test_a_pool_has_pages() -> None:
    with pytest.raises(BadInput, match="not 0"):
        PageAllocator(0)
