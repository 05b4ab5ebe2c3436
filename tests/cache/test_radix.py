"""The prefix tree from Python: what it finds, holds, shares and gives up."""

from __future__ import annotations

import numpy as np
import pytest

from moonpool import _core
from moonpool.cache import Lease, Namespace, RadixCache
from moonpool.core.errors import BadConfig, BadInput, LeaseReleased
from moonpool.pool.eviction import POLICIES, Sieve

PAGE = 4


def pages(*ids: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(ids, np.int32)


def prompt(*page_names: int, tail: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Whole pages of tokens by name, and `tail` tokens more."""
    whole = [name * PAGE + i for name in page_names for i in range(PAGE)]
    return np.array(whole + [-1] * tail, np.int32)


def filled(tree: RadixCache, *chains: tuple[int, ...]) -> RadixCache:
    """Caches chains of page names; a page of tokens named n lies in page n."""
    for chain in chains:
        tree.insert(prompt(*chain), pages(*chain)).lease.release()
    tree.check()
    return tree


def found(tree: RadixCache, *chain: int, tail: int = 1) -> list[int]:
    with tree.match(prompt(*chain, tail=tail)) as lease:
        tree.check()
        hit: list[int] = lease.pages.tolist()
        return hit


def test_the_longest_cached_prefix_in_whole_pages() -> None:
    tree = filled(RadixCache(PAGE), (1, 2, 3))
    assert found(tree, 1, 2, 3) == [1, 2, 3]
    assert found(tree, 1, 2, 9) == [1, 2]
    assert found(tree, 9) == []
    assert found(tree, 1, 2, tail=3) == [1, 2]


def test_the_last_prompt_token_is_never_matched() -> None:
    tree = filled(RadixCache(PAGE), (1, 2, 3))
    assert found(tree, 1, 2, 3, tail=0) == [1, 2]
    with tree.match(prompt(1, 2, 3), keep=0) as lease:
        assert lease.tokens == 3 * PAGE
    with tree.match(prompt(1)[:1]) as lease:
        assert lease.tokens == 0


def test_a_page_size_of_one() -> None:
    tree = RadixCache(1)
    tree.insert([5, 6, 7], pages(0, 1, 2)).lease.release()
    with tree.match([5, 6, 8, 9]) as lease:
        assert lease.pages.tolist() == [0, 1]
    tree.check()


def test_what_was_cached_before_is_not_taken() -> None:
    tree = filled(RadixCache(PAGE), (1, 2))
    lease, known = tree.insert(prompt(1, 2, 3), pages(11, 12, 13))
    assert known == 2
    assert lease.pages.tolist() == [1, 2, 13]
    assert sorted(tree.check().tolist()) == [1, 2, 13]


def test_a_branch_splits_an_edge_and_leases_stay_what_they_were() -> None:
    tree = filled(RadixCache(PAGE), (1, 2, 3, 4))
    whole = tree.match(prompt(1, 2, 3, 4), keep=0)
    lease, known = tree.insert(prompt(1, 2, 8), pages(1, 2, 8))
    tree.check()
    assert known == 2
    assert whole.pages.tolist() == [1, 2, 3, 4]
    assert tree.protected_pages == 5
    whole.release()
    tree.check()
    assert tree.protected_pages == 3
    lease.release()
    assert tree.protected_pages == 0


def test_a_lease_keeps_its_pages_and_a_dropped_one_does_not() -> None:
    tree = filled(RadixCache(PAGE), (1, 2, 3))
    lease = tree.match(prompt(1, 2, tail=1))
    assert tree.evict(10).tolist() == [3]
    assert (tree.protected_pages, tree.evictable_pages, tree.leases) == (2, 0, 1)
    del lease
    tree.check()
    assert tree.evict(10).tolist() == [2, 1]


def test_a_second_release_is_an_error() -> None:
    tree = filled(RadixCache(PAGE), (1,))
    lease = tree.match(prompt(1, tail=1))
    lease.release()
    with pytest.raises(LeaseReleased, match="4 tokens"):
        lease.release()
    assert not lease.held
    tree.check()


def test_a_lease_outlives_its_cache() -> None:
    tree = filled(RadixCache(PAGE), (1, 2))
    lease: Lease = tree.match(prompt(1, 2, tail=1))
    del tree
    assert lease.pages.tolist() == [1, 2]
    lease.release()


def test_eviction_takes_exact_pages_from_the_end() -> None:
    tree = filled(RadixCache(PAGE), (1, 2, 3, 4, 5))
    assert tree.evict(2).tolist() == [5, 4]
    tree.check()
    assert found(tree, 1, 2, 3, 4) == [1, 2, 3]
    assert tree.cached_pages == 3


def test_eviction_takes_the_least_recently_used_leaf_first() -> None:
    tree = filled(RadixCache(PAGE), (1, 2), (1, 3), (4,))
    found(tree, 1, 2)
    assert tree.evict(1).tolist() == [3]
    assert tree.evict(1).tolist() == [4]
    assert tree.evict(5).tolist() == [2, 1]
    assert tree.evict(1).tolist() == []


def test_a_partial_hit_refreshes_what_it_hit_and_nothing_else() -> None:
    tree = filled(RadixCache(PAGE), (1, 2), (3,))
    assert found(tree, 1) == [1]
    assert tree.evict(3).tolist() == [2, 3, 1]


def test_fifo_goes_by_age() -> None:
    tree = filled(RadixCache(PAGE, "fifo"), (1,), (2,), (3,))
    found(tree, 1)
    assert tree.evict(3).tolist() == [1, 2, 3]


def test_lfu_goes_by_uses_then_by_recency() -> None:
    tree = filled(RadixCache(PAGE, "lfu"), (1,), (2,), (3,))
    for chain in (1, 1, 3, 2):
        found(tree, chain)
    assert tree.evict(3).tolist() == [3, 2, 1]


def test_namespaces_share_nothing() -> None:
    tree = filled(RadixCache(PAGE), (1, 2))
    salted = Namespace(salt="s")
    with tree.match(prompt(1, 2, tail=1), salted) as lease:
        assert lease.tokens == 0
    tree.insert(prompt(1), pages(7), salted).lease.release()
    tree.check()
    assert found(tree, 1, 2) == [1, 2]
    with tree.match(prompt(1, 2, tail=1), Namespace(salt="s")) as lease:
        assert lease.pages.tolist() == [7]
    with tree.match(prompt(1, 2, tail=1), Namespace(adapter="s")) as lease:
        assert lease.tokens == 0


def test_an_empty_namespace_leaves_nothing_behind() -> None:
    tree = RadixCache(PAGE)
    for number in range(50):
        with tree.match(prompt(1, tail=1), Namespace(salt=str(number))):
            assert tree._tree.nodes == 1
    tree.insert(prompt(1), pages(1), Namespace(salt="x")).lease.release()
    tree.evict(1)
    tree.check()
    assert tree._tree.nodes == 0


def test_lookup_changes_nothing() -> None:
    tree = filled(RadixCache(PAGE), (1, 2, 3), (4,))
    nodes = tree._tree.nodes
    assert tree.lookup(prompt(1, 2, tail=1)) == 2 * PAGE
    assert tree.lookup(prompt(9)) == 0
    assert tree.lookup(prompt(1, tail=1), Namespace(salt="none")) == 0
    assert tree._tree.nodes == nodes
    assert tree.evict(1).tolist() == [3]


def test_the_routing_chain_is_that_of_the_core() -> None:
    tree = RadixCache(PAGE)
    tokens = prompt(1, 2, 3)
    tree.insert(tokens[: 2 * PAGE], pages(1, 2)).lease.release()
    lease = tree.insert(tokens, pages(1, 2, 3)).lease
    chain = _core.block_hashes_u64(tokens.view(np.uint32), PAGE)
    assert lease.hashes.tolist() == chain.tolist()
    salted = Namespace(salt="s")
    hashes = tree.insert(tokens, pages(4, 5, 6), salted).lease.hashes
    chain = _core.block_hashes_u64(tokens.view(np.uint32), PAGE, salted.seed)
    assert hashes.tolist() == chain.tolist()


def test_an_edge_grows_under_the_lease_of_its_only_owner() -> None:
    tree = RadixCache(PAGE)
    lease = tree.insert(prompt(1), pages(1)).lease
    for end in range(2, 6):
        chain = tuple(range(1, end + 1))
        longer = tree.insert(prompt(*chain), pages(*chain), owner=lease).lease
        lease.release()
        lease = longer
        tree.check()
    assert tree._tree.nodes == 2
    assert tree.protected_pages == 5
    other = tree.match(prompt(1, 2, 3, 4, 5), keep=0)
    third = tree.insert(prompt(1, 2, 3, 4, 5, 6), pages(1, 2, 3, 4, 5, 6), owner=lease).lease
    assert tree._tree.nodes == 3  # somebody else holds the edge: it got a child
    for one in (lease, other, third):
        one.release()
    tree.check()


def test_clear_takes_all_that_nobody_holds() -> None:
    tree = filled(RadixCache(PAGE), (1, 2), (1, 3), (4,))
    lease = tree.match(prompt(1, 2, tail=1))
    assert sorted(tree.clear().tolist()) == [3, 4]
    tree.check()
    lease.release()
    assert sorted(tree.clear().tolist()) == [1, 2]


def test_token_ids_in_any_form() -> None:
    tree = filled(RadixCache(PAGE), (1, 2))
    tokens = prompt(1, 2, tail=1)
    forms = [tokens.astype(np.int64) % 2**32, tokens.view(np.uint32), list(prompt(1, 2)) + [0]]
    for form in forms:
        with tree.match(form) as lease:
            assert lease.tokens == 2 * PAGE


@pytest.mark.parametrize(
    "bad", [[1.5], [[1, 2]], [-1], [2**32], "text", [None]], ids=lambda value: str(value)
)
def test_what_is_no_list_of_tokens(bad: object) -> None:
    tree = RadixCache(PAGE)
    with pytest.raises(BadInput, match="token ids"):
        tree.match(bad)


def test_bad_arguments() -> None:
    with pytest.raises(BadConfig, match="Did you mean 'lru'"):
        RadixCache(PAGE, "lruu")
    with pytest.raises(BadInput, match="not 0"):
        RadixCache(0)
    with pytest.raises(BadInput, match="2 pages of 4 tokens, but only 7 tokens"):
        RadixCache(PAGE).insert(prompt(1, tail=3), pages(1, 2))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_takes_tails_of_what_nobody_holds(policy: str) -> None:
    tree = filled(RadixCache(PAGE, policy, pages_max=8), (1, 2, 3), (1, 4), (5,))
    lease = tree.match(prompt(1, 2, tail=1))
    gone = tree.evict(2).tolist()
    tree.check()
    assert len(gone) == 2
    assert set(gone) <= {3, 4, 5}
    assert sorted(tree.evict(9).tolist() + gone) == [3, 4, 5]
    lease.release()
    assert tree.evict(9).tolist() == [2, 1]
    tree.check()


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_policy_knows_what_was_cleared(policy: str) -> None:
    tree = filled(RadixCache(PAGE, policy, pages_max=8), (1, 2), (3,))
    assert sorted(tree.clear().tolist()) == [1, 2, 3]
    filled(tree, (1, 2), (3,))
    assert sorted(tree.evict(3).tolist()) == [1, 2, 3]
    assert tree.evict(1).tolist() == []


def test_a_policy_object_of_the_callers() -> None:
    policy: Sieve[int] = Sieve(4)
    tree = filled(RadixCache(PAGE, policy), (1, 2), (3,))
    assert len(policy) == 3
    found(tree, 1, 2)
    assert tree.evict(1).tolist() == [3]
    with tree.match(prompt(1, 2, tail=1), touch=False) as lease:
        tree.touch(lease)
    assert len(policy) == 2


def test_pages_that_a_policy_never_heard_of_still_go() -> None:
    """Two pages of one hash are one to a policy; here it forgets a page instead."""
    policy: Sieve[int] = Sieve(4)
    tree = filled(RadixCache(PAGE, policy), (1,), (2,))
    policy.remove(tree.match(prompt(1, tail=1), touch=False).hashes[0])
    assert sorted(tree.evict(2).tolist()) == [1, 2]
    tree.check()
