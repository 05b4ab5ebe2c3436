"""Admission, growth, sharing and the end of sequences; check() after every step."""

from __future__ import annotations

import numpy as np
import pytest

from moonpool.cache import CacheManager, Namespace, PageAllocator, Sequence, SequenceState
from moonpool.core.errors import BadInput, OutOfPages

PAGE = 4


def manager_of(pages: int, **options: object) -> CacheManager:
    return CacheManager(PageAllocator(pages), PAGE, **options)  # type: ignore[arg-type]


def started(manager: CacheManager, tokens: object, tokens_max: int | None = None) -> Sequence:
    sequence = manager.sequence(tokens, tokens_max or len(tokens))  # type: ignore[arg-type]
    assert manager.can_admit(sequence)
    assert manager.admit(sequence)
    manager.check()
    return sequence


def computed(manager: CacheManager, sequence: Sequence, tokens: int | None = None) -> int:
    tokens = len(sequence) if tokens is None else tokens
    manager.grow(sequence, tokens)
    manager.check()
    rewritten = manager.commit(sequence, tokens)
    manager.check()
    return rewritten


def finished(manager: CacheManager, sequence: Sequence) -> None:
    manager.finish(sequence)
    manager.check()


def test_a_second_sequence_finds_the_first_ones_pages() -> None:
    manager = manager_of(16)
    first = started(manager, range(10))
    computed(manager, first)
    table = first.table.tolist()
    finished(manager, first)
    second = started(manager, range(10))
    assert second.cached_tokens == second.computed_tokens == 8
    assert second.table.tolist() == table[:2]
    assert manager.counts.hit_tokens == 8


def test_one_prompt_token_is_always_left_to_compute() -> None:
    manager = manager_of(16)
    first = started(manager, range(8))
    computed(manager, first)
    finished(manager, first)
    assert started(manager, range(8)).cached_tokens == 4


def test_copies_of_a_prefix_computed_side_by_side_are_rewritten() -> None:
    """Mini-SGLang frees the second one's copies and leaves its page table pointing at them."""
    manager = manager_of(64)
    one, two = started(manager, range(64)), started(manager, range(64))
    assert computed(manager, one) == 0
    manager.grow(two, 64)
    own = two.table.tolist()
    assert manager.commit(two, 64) == 16
    manager.check()
    assert two.table.tolist() == one.table.tolist()
    free = set(manager.allocator.free_list().tolist())
    assert set(own) <= free
    assert not free & set(two.table.tolist())
    assert manager.counts.rewritten_pages == 16


def test_a_prefill_in_chunks_shares_each_whole_page_at_once() -> None:
    manager = manager_of(16)
    first = started(manager, range(14))
    computed(manager, first, 6)
    assert (first.shared_pages, len(first.table)) == (1, 2)
    assert started(manager, range(14)).cached_tokens == 4
    computed(manager, first, 14)
    assert (first.shared_pages, len(first.table)) == (3, 4)
    assert started(manager, range(14)).cached_tokens == 12


def test_a_partial_tail_page_stays_private_and_is_free_at_the_end() -> None:
    manager = manager_of(4)
    one = started(manager, range(6))
    computed(manager, one)
    assert manager.tree.cached_pages == 1
    finished(manager, one)
    assert manager.allocator.free_pages == 3


def test_decoding_fills_pages_that_become_shared() -> None:
    manager = manager_of(8)
    one = started(manager, range(3), 12)
    computed(manager, one)
    for token in range(100, 109):
        one.append(token)
        computed(manager, one)
    assert one.shared_pages == 3
    finished(manager, one)
    longer = [0, 1, 2, *range(100, 109), 7]
    assert started(manager, longer).cached_tokens == 12


def test_admission_keeps_room_for_what_runs() -> None:
    manager = manager_of(8)
    one = started(manager, range(4), 24)
    two = manager.sequence(range(50, 54), 12)
    assert not manager.can_admit(two)
    assert not manager.admit(two)
    assert two.state is SequenceState.WAITING
    assert manager.reserved_pages == 6
    finished(manager, one)
    assert manager.admit(two)


def test_what_an_admission_would_hold_does_not_count_as_evictable() -> None:
    """Locking the hit shrinks what can be evicted; the budget is looked at after it."""
    manager = manager_of(6)
    one = started(manager, range(12))
    computed(manager, one)
    finished(manager, one)
    running = started(manager, range(50, 58))
    computed(manager, running)
    assert (manager.available_pages, manager.allocator.free_pages) == (4, 1)
    assert not manager.can_admit(manager.sequence(range(13), 17))
    assert manager.can_admit(manager.sequence(range(13), 16))


def test_growth_evicts_what_nobody_holds() -> None:
    manager = manager_of(4)
    one = started(manager, range(16))
    computed(manager, one)
    finished(manager, one)
    two = started(manager, range(100, 108))
    computed(manager, two)
    assert manager.counts.evicted_pages == 2
    assert manager.tree.lookup(range(9)) == 8


def test_without_reserve_the_pool_can_run_dry_and_preemption_helps() -> None:
    manager = manager_of(4, reserve_fraction=0.0)
    one, two = started(manager, range(8), 16), started(manager, range(50, 58), 16)
    for sequence in (one, two):
        computed(manager, sequence)
        sequence.append(1)
    assert not manager.can_grow(one, 9)
    with pytest.raises(OutOfPages, match="preempt"):
        manager.grow(one, 9)
    manager.check()
    manager.preempt(two)
    manager.check()
    assert (two.state, len(two.table), len(two)) == (SequenceState.WAITING, 0, 9)
    computed(manager, one)
    finished(manager, one)
    assert manager.admit(two)
    manager.check()
    assert two.cached_tokens == 4  # its last page was evicted meanwhile


def test_an_aborted_sequence_leaves_only_what_was_committed() -> None:
    manager = manager_of(8)
    one = started(manager, range(16))
    manager.grow(one, 16)
    manager.commit(one, 9)
    finished(manager, one)
    assert (manager.tree.cached_pages, manager.allocator.free_pages) == (2, 6)


def test_namespaces_share_nothing() -> None:
    manager = manager_of(16)
    one = manager.sequence(range(8), 8, Namespace(salt="a"))
    manager.admit(one)
    computed(manager, one)
    assert started(manager, range(9)).cached_tokens == 0


def test_clear_leaves_what_runs() -> None:
    manager = manager_of(8)
    one, two = started(manager, range(4)), started(manager, range(10, 14))
    for sequence in (one, two):
        computed(manager, sequence)
    finished(manager, one)
    assert manager.clear() == 1
    manager.check()
    assert manager.tree.cached_pages == 1


def test_tables_below_each_other() -> None:
    manager = manager_of(8)
    one, two = started(manager, range(4)), started(manager, range(10, 22))
    for sequence in (one, two):
        computed(manager, sequence)
    table = manager.page_table([one, two], fill=-1)
    assert table.tolist() == [[*one.table.tolist(), -1, -1], two.table.tolist()]
    assert manager.page_table([]).shape == (0, 0)


def test_content_hashes_are_computed_once_and_grow() -> None:
    sequence = Sequence(range(6), 20, page_size=PAGE)
    first = sequence.content_hashes()
    assert first.shape == (1, 32)
    assert sequence.content_hashes() is first
    sequence.append(*range(6, 12))
    whole = Sequence(range(12), 12, page_size=PAGE).content_hashes()
    assert np.array_equal(sequence.content_hashes(), whole)


def test_what_can_never_run_is_refused_at_once() -> None:
    manager = manager_of(2)
    with pytest.raises(BadInput, match="need 3 pages of 4 tokens, this cache has 2"):
        manager.sequence(range(4), 9)
    with pytest.raises(BadInput, match="at least one token"):
        manager.sequence([], 9)
    with pytest.raises(BadInput, match="below the prompt"):
        manager.sequence(range(4), 3)


def test_calls_out_of_turn() -> None:
    manager = manager_of(8)
    one = manager.sequence(range(4), 6)
    with pytest.raises(BadInput, match="is waiting, not running"):
        manager.grow(one, 4)
    manager.admit(one)
    with pytest.raises(BadInput, match="is running, not waiting"):
        manager.admit(one)
    with pytest.raises(BadInput, match="grow comes first"):
        manager.commit(one, 4)
    with pytest.raises(BadInput, match="more than this sequence's 6"):
        manager.grow(one, 7)
    manager.grow(one, 4)
    with pytest.raises(BadInput, match="5 computed tokens of 4"):
        manager.commit(one, 5)
    with pytest.raises(BadInput, match="7 tokens are more"):
        one.append(1, 2, 3)
    manager.finish(one)
    with pytest.raises(BadInput, match="is finished, not running"):
        manager.finish(one)
    with pytest.raises(BadInput, match="from 0 to 1"):
        manager_of(8, reserve_fraction=2.0)


def test_the_check_sees_a_dangling_page_table() -> None:
    manager = manager_of(8)
    one = started(manager, range(6))
    computed(manager, one)
    one.table[1] = manager.allocator.free_list()[0]
    with pytest.raises(AssertionError, match="in no place|several places"):
        manager.check()
