"""The prefix cache: which pages hold the keys and values of which tokens (after SGLang's
RadixAttention). It names pages and owns none of their memory; the walk is native.

Edges are whole pages, each namespace has a tree of its own. Whoever finds pages holds them: match
and insert return a Lease, there is no handle without one.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, NamedTuple

import numpy as np

from moonpool import _core
from moonpool.cache.base import I32, U64, as_tokens, checked_page_size
from moonpool.cache.events import (
    MEDIUM_DEFAULT,
    AllBlocksCleared,
    CacheDigest,
    KvEvent,
    RangesCleared,
    told,
)
from moonpool.cache.namespace import PLAIN, Namespace
from moonpool.core.errors import BadInput, LeaseReleased
from moonpool.pool.eviction import EvictionPolicy, policy_named

PAGES_MAX_DEFAULT: Final = 1 << 16
REMOVED: Final = 2  # in the tree's journal
ORDERS: Final = {"lru": "used", "fifo": "created", "lfu": "uses"}
"""Policies that the tree's own order is; the others are told of each page, and asked."""


class Lease:
    """Pages that stay cached until `release`: cached prefix of the tokens asked for.

    `pages` int32[n], in order; `hashes` uint64[n], their routing chain; `tokens`, how many they
    cover. A context manager. One that is dropped without release gives its pages back, too.
    """

    __slots__ = ("_native", "pages", "tokens")

    def __init__(self, native: _core.RadixLease, page_size: int) -> None:
        self._native = native
        self.pages: I32 = native.pages
        self.tokens = len(native) * page_size

    @property
    def hashes(self) -> U64:
        return self._native.hashes

    @property
    def held(self) -> bool:
        return self._native.held

    def release(self) -> None:
        """The pages may be evicted, as far as this lease goes. Raises LeaseReleased on a second."""
        if not self._native.release():
            raise LeaseReleased(f"this lease of {self.tokens} tokens was released before")

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.held:
            self.release()


class Insertion(NamedTuple):
    """`lease` holds the whole path; the first `known` of the pages given were not taken, because
    the tree has other ones (or the same) for those tokens: `lease.pages` says which."""

    lease: Lease
    known: int


class RadixCache:
    """Prefix tree over pages of `page_size` tokens.

    `policy` says which page goes first, always from the tails of what nobody holds: a name of
    `moonpool.pool.eviction`, or a policy over routing hashes. lru, lfu and fifo are the native
    tree's own and cost nothing more; the others cost about a microsecond for each page found.
    `pages_max`: how many pages there can be, which those others size themselves by. With
    `events_max` above 0 it remembers what happened, up to so many pages, for `take_events`. Not
    thread-safe beyond what the GIL gives. Raises BadInput, BadConfig.
    """

    def __init__(
        self,
        page_size: int,
        policy: str | EvictionPolicy[int] = "lru",
        *,
        pages_max: int = PAGES_MAX_DEFAULT,
        events_max: int = 0,
        medium: str = MEDIUM_DEFAULT,
    ) -> None:
        self.page_size = checked_page_size(page_size)
        self._policy: EvictionPolicy[int] | None = None
        if not isinstance(policy, str):
            self._policy = policy
        elif policy not in ORDERS:
            self._policy = policy_named(policy, pages_max)
        order = "external" if self._policy is not None else ORDERS[str(policy)]
        self._tree = _core.RadixTree(page_size, order, events_max)
        self._match = self._tree.match
        self._insert = self._tree.insert
        self._medium = medium

    def match(
        self, tokens: object, namespace: Namespace = PLAIN, *, keep: int = 1, touch: bool = True
    ) -> Lease:
        """The longest cached prefix, held.

        The last `keep` tokens are never part of it: a prompt needs one token to compute, or there
        are no logits. Without `touch` it does not count as a use. Raises BadInput.
        """
        space, seed = namespace.encoded, namespace.seed
        try:
            size = len(tokens)  # type: ignore[arg-type]  # what has none is converted below
            native = self._match(space, seed, tokens, max(size - keep, 0), touch)  # type: ignore[arg-type]
        except TypeError:
            array = as_tokens(tokens)
            native = self._match(space, seed, array, max(len(array) - keep, 0), touch)
        if self._policy is not None and touch:
            self._tell(self._policy)
        return Lease(native, self.page_size)

    def touch(self, lease: Lease) -> None:
        """The pages of a lease count as used now."""
        lease._native.touch()
        if self._policy is not None:
            self._tell(self._policy)

    def lookup(self, tokens: object, namespace: Namespace = PLAIN, *, keep: int = 1) -> int:
        """Tokens that `match` would find; changes nothing."""
        array = as_tokens(tokens)
        limit = max(len(array) - keep, 0)
        return self._tree.lookup(namespace.encoded, array, limit) * self.page_size

    def insert(
        self,
        tokens: object,
        pages: I32,
        namespace: Namespace = PLAIN,
        *,
        owner: Lease | None = None,
    ) -> Insertion:
        """Caches the first `len(pages)` pages of `tokens`; they belong to the tree from here on,
        but for the `known` ones. Raises BadInput when the tokens are fewer.

        `owner`, a lease of the caller's on the start of the same tokens, lets its last edge grow
        instead of getting a child; it stays to be released.
        """
        space, seed = namespace.encoded, namespace.seed
        held = None if owner is None else owner._native
        try:
            try:
                native, known = self._insert(space, seed, tokens, pages, held)  # type: ignore[arg-type]
            except TypeError:
                native, known = self._insert(space, seed, as_tokens(tokens), pages, held)
        except ValueError as error:
            raise BadInput(str(error)) from None
        if self._policy is not None:
            self._tell(self._policy)
        return Insertion(Lease(native, self.page_size), known)

    def evict(self, pages: int) -> I32:
        """Exactly so many pages, or all that nobody holds; the caller owns them now."""
        if self._policy is None:
            return self._tree.evict(pages)
        chosen = self._chosen(self._policy, min(pages, self.evictable_pages))
        rest = self._tree.evict(pages - len(chosen))  # two pages of one hash, known as one
        self._tell(self._policy)
        return np.concatenate([chosen, rest]) if len(rest) else chosen

    def clear(self) -> I32:
        """All pages that nobody holds; the caller owns them now."""
        pages = self._tree.clear()
        if self._policy is not None:
            self._tell(self._policy)
        return pages

    @property
    def cached_pages(self) -> int:
        return self._tree.cached_pages

    @property
    def protected_pages(self) -> int:
        """Pages under leases."""
        return self._tree.protected_pages

    @property
    def evictable_pages(self) -> int:
        return self._tree.cached_pages - self._tree.protected_pages

    @property
    def leases(self) -> int:
        return self._tree.leases

    def take_events(self) -> list[KvEvent]:
        """What happened since the last call; after a loss, everything anew."""
        lost, records = self._tree.take_events()
        if lost:
            return self.snapshot_events()
        return told(records, self.page_size, self._medium)

    def snapshot_events(self) -> list[KvEvent]:
        """What a new follower needs: AllBlocksCleared and the whole tree, parents first."""
        records = self._tree.report()
        return [AllBlocksCleared(), *told(records, self.page_size, self._medium)]

    def range_events(self, ranges: bytes) -> list[KvEvent]:
        """What a follower needs whose account of these ranges (32 bytes, a bit for each first byte
        of a hash) differs: RangesCleared, and what is held of them."""
        records = self._tree.report(ranges)
        cleared = RangesCleared(medium=self._medium, ranges=ranges)
        return [cleared, *told(records, self.page_size, self._medium)]

    def digest_event(self) -> CacheDigest:
        """An account of all that is held; a few nanoseconds a page."""
        counts, digests = self._tree.digest()
        return CacheDigest(medium=self._medium, counts=counts, digests=digests)

    def check(self) -> I32:
        """Walks everything; every cached page. Raises AssertionError with what does not hold."""
        wrong, pages = self._tree.check()
        assert not wrong, f"prefix tree: {wrong}"
        return pages

    def _chosen(self, policy: EvictionPolicy[int], count: int) -> I32:
        pages = np.empty(count, np.int32)
        for i in range(count):
            key = policy.victim(self._tree.is_tail)
            if key is None:
                return pages[:i]
            pages[i] = self._tree.evict_tail(key)
        return pages

    def _tell(self, policy: EvictionPolicy[int]) -> None:
        """What happened in the tree, page by page."""
        hashes, depths, kinds = self._tree.take_journal()
        for key, depth, kind in zip(hashes.tolist(), depths.tolist(), kinds.tolist(), strict=True):
            if kind == REMOVED:
                if key in policy:
                    policy.remove(key)
            elif key in policy:
                policy.touch(key)
            else:
                policy.add(key, depth)
