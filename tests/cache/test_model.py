"""The prefix tree against a dictionary, by hypothesis: any order of calls, every policy."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from moonpool.cache import Lease, Namespace, RadixCache
from moonpool.cache.radix import ORDERS
from moonpool.pool.eviction import POLICIES
from tests.cache.naive import Chain, NaiveCache

PAGES = 24
spaces = st.sampled_from(["", "other"])
# Few tokens, so that chains meet: pages of two tokens out of two.
chains = st.lists(st.integers(0, 1), min_size=1, max_size=13).map(tuple)


def namespace_of(space: str) -> Namespace:
    return Namespace(salt=space or None)


class TreeAndDictionary(RuleBasedStateMachine):
    @initialize(policy=st.sampled_from(sorted(POLICIES)), page_size=st.integers(1, 3))
    def begin(self, policy: str, page_size: int) -> None:
        self.page_size = page_size
        self.policy = policy
        self.tree = RadixCache(page_size, policy, pages_max=PAGES)
        self.naive = NaiveCache(page_size, policy)
        self.free = list(range(PAGES))
        self.leases: list[tuple[Lease, str, Chain]] = []

    def whole(self, tokens: Chain) -> Chain:
        return tokens[: len(tokens) // self.page_size * self.page_size]

    @rule(space=spaces, tokens=chains, touch=st.booleans(), keep=st.integers(0, 2))
    def match(self, space: str, tokens: Chain, touch: bool, keep: int) -> None:
        limited = tokens[: max(len(tokens) - keep, 0)]
        wanted = self.naive.prefix(space, limited)
        namespace = namespace_of(space)
        assert self.tree.lookup(tokens, namespace, keep=keep) == len(wanted)
        lease = self.tree.match(tokens, namespace, keep=keep, touch=touch)
        assert self.naive.match(space, limited, touch) == wanted
        self.leases.append((lease, space, wanted))

    @rule(space=spaces, tokens=chains, owned=st.booleans())
    def insert(self, space: str, tokens: Chain, owned: bool) -> None:
        tokens = self.whole(tokens)
        count = len(tokens) // self.page_size
        if count > len(self.free):
            return
        pages = [self.free.pop() for _ in range(count)]
        owner = self.leases[-1] if owned and self.leases else None
        lease, known = self.tree.insert(
            tokens,
            np.array(pages, np.int32),
            namespace_of(space),
            owner=owner[0] if owner is not None else None,
        )
        assert known == self.naive.insert(space, tokens, pages)
        self.free += pages[:known]
        self.leases.append((lease, space, tokens))
        if owner is not None:  # as its owner does, who holds the longer one now
            self.release_lease(len(self.leases) - 2)

    @precondition(lambda self: self.leases)
    @rule(number=st.integers(0, 100))
    def release(self, number: int) -> None:
        self.release_lease(number % len(self.leases))

    def release_lease(self, number: int) -> None:
        lease, space, tokens = self.leases.pop(number)
        lease.release()
        self.naive.release(space, tokens)

    @rule(count=st.integers(0, 6))
    def evict(self, count: int) -> None:
        wanted = min(count, self.naive.evictable())
        gone = self.tree.evict(count).tolist()
        assert len(gone) == wanted
        if self.policy in ORDERS:
            assert gone == self.naive.evict(count)
        else:
            for page in gone:
                self.naive.forget(page)
        self.free += gone

    @rule()
    def clear(self) -> None:
        gone = self.tree.clear().tolist()
        assert sorted(gone) == sorted(self.naive.evict(PAGES))
        self.free += gone

    @invariant()
    def the_same(self) -> None:
        cached = sorted(one.page for one in self.naive.pages.values())
        assert sorted(self.tree.check().tolist()) == cached
        assert sorted(cached + self.free) == list(range(PAGES))
        assert self.tree.evictable_pages == self.naive.evictable()
        for lease, space, tokens in self.leases:
            assert lease.tokens == len(tokens)
            assert lease.pages.tolist() == [one.page for one in self.naive.path(space, tokens)]


TestTreeAndDictionary = TreeAndDictionary.TestCase
TestTreeAndDictionary.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
