"""The cache manager: who may run, and on which pages. Pure: no clock, no tensors, no threads.

It joins the allocator (free pages), the tree (shared pages) and the sequences' tables. Admission is
by budget: a sequence is let in when its worst case fits beside what the running ones may still
need, so that a running one does not meet a full pool; with `reserve_fraction` below 1 it may, and
the engine then preempts.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from math import ceil

import numpy as np

from moonpool.cache.allocator import PageAllocator
from moonpool.cache.base import I32, pages_for
from moonpool.cache.check import check_manager
from moonpool.cache.events import KvEvent
from moonpool.cache.namespace import PLAIN, Namespace
from moonpool.cache.radix import Lease, RadixCache
from moonpool.cache.sequence import Sequence, SequenceState
from moonpool.core.errors import BadInput, OutOfPages
from moonpool.pool.eviction import EvictionPolicy


@dataclass(slots=True)
class CacheCounts:
    """What happened since the start; numbers only grow."""

    admitted: int = 0
    prompt_tokens: int = 0
    """Tokens of admitted sequences."""
    hit_tokens: int = 0
    """Of those, found cached."""
    evicted_pages: int = 0
    rewritten_pages: int = 0
    """Computed twice by sequences that ran beside each other; one copy went back."""
    preempted: int = 0


class CacheManager:
    """Over `allocator`'s pages of `page_size` tokens. See `Sequence` for who owns which page.

    `reserve_fraction`: how much of the tokens that a running sequence may still generate is kept
    free for it, from 0 (hope) to 1 (certainty).
    """

    def __init__(
        self,
        allocator: PageAllocator,
        page_size: int,
        *,
        policy: str | EvictionPolicy[int] = "lru",
        reserve_fraction: float = 1.0,
        events_max: int = 0,
    ) -> None:
        if not 0 <= reserve_fraction <= 1:
            raise BadInput(f"reserve_fraction is from 0 to 1, not {reserve_fraction}")
        self.allocator = allocator
        self.page_size = page_size
        self.tree = RadixCache(page_size, policy, pages_max=allocator.pages, events_max=events_max)
        self.counts = CacheCounts()
        self._reserve_fraction = reserve_fraction
        self._running: dict[int, Sequence] = {}

    @property
    def running(self) -> list[Sequence]:
        """In order of admission."""
        return list(self._running.values())

    @property
    def available_pages(self) -> int:
        """Free, or evictable at once."""
        return self.allocator.free_pages + self.tree.evictable_pages

    @property
    def reserved_pages(self) -> int:
        """What the running sequences may still ask for, by the reserve."""
        return sum(self._target(one) - len(one.table) for one in self._running.values())

    def sequence(self, prompt: object, tokens_max: int, namespace: Namespace = PLAIN) -> Sequence:
        """A waiting sequence of this manager's page size. Raises BadInput, also when it could never
        run here."""
        made = Sequence(prompt, tokens_max, namespace, page_size=self.page_size)
        needed = pages_for(tokens_max, self.page_size)
        if needed > self.allocator.pages:
            raise BadInput(
                f"{tokens_max} tokens need {needed} pages of {self.page_size} tokens, this cache"
                f" has {self.allocator.pages}"
            )
        return made

    def match(self, sequence: Sequence) -> Lease:
        """The cached prefix that an admission would give it, held: the longest. For engines to
        override that may reuse less of it; never the last token, and without counting as a use."""
        return self.tree.match(sequence.tokens, sequence.namespace, touch=False)

    def can_admit(self, sequence: Sequence) -> bool:
        """Whether `admit` would let it in now; changes nothing that anybody could see."""
        with self.match(sequence) as lease:
            return self._fits(sequence, lease)

    def admit(self, sequence: Sequence) -> bool:
        """Lets a waiting sequence run, its longest cached prefix in its table and held; False, and
        nothing done, when it does not fit now. All but its last token may be cached."""
        self._expect(sequence, SequenceState.WAITING)
        lease = self.match(sequence)
        if not self._fits(sequence, lease):
            lease.release()
            return False
        self.tree.touch(lease)
        sequence.lease = lease
        sequence.extend_table(lease.pages)
        sequence.cached_tokens = sequence.computed_tokens = lease.tokens
        sequence.state = SequenceState.RUNNING
        self._running[id(sequence)] = sequence
        self.counts.admitted += 1
        self.counts.prompt_tokens += len(sequence)
        self.counts.hit_tokens += lease.tokens
        return True

    def can_grow(self, sequence: Sequence, tokens: int) -> bool:
        """Whether `grow` would succeed now."""
        return self._missing(sequence, tokens) <= self.available_pages

    def grow(self, sequence: Sequence, tokens: int) -> I32:
        """Makes room for the first `tokens` tokens: the next chunk of a prefill, or one more token.

        Returns the pages that came (int32[n], often none). Evicts what it must. Raises OutOfPages
        with nothing changed (with the whole reserve this cannot be), BadInput beyond `tokens_max`.
        """
        self._expect(sequence, SequenceState.RUNNING)
        if tokens > sequence.tokens_max:
            raise BadInput(f"{tokens} tokens are more than this sequence's {sequence.tokens_max}")
        pages = self._allocate(self._missing(sequence, tokens))
        sequence.extend_table(pages)
        return pages

    def commit(self, sequence: Sequence, computed_tokens: int) -> int:
        """The first `computed_tokens` tokens are in their pages now: after a chunk, a decode step
        or a load. Whole pages become shared.

        Where another sequence has cached the same tokens meanwhile, the table is rewritten to its
        pages and the copies go back to the free list. Returns how many entries were rewritten.
        Raises BadInput for more tokens than there are, or than the table has room for.
        """
        self._expect(sequence, SequenceState.RUNNING)
        if not sequence.computed_tokens <= computed_tokens <= len(sequence):
            raise BadInput(
                f"{computed_tokens} computed tokens of {len(sequence)}, after"
                f" {sequence.computed_tokens}"
            )
        if computed_tokens > sequence.room_tokens:
            raise BadInput(
                f"{computed_tokens} computed tokens, but pages for {sequence.room_tokens}; grow"
                " comes first"
            )
        sequence.computed_tokens = computed_tokens
        whole = computed_tokens // self.page_size
        return self._share(sequence, whole) if whole > sequence.shared_pages else 0

    def finish(self, sequence: Sequence) -> None:
        """The end, also by abort: what was committed stays cached, everything else is free."""
        self._leave(sequence, SequenceState.FINISHED)

    def preempt(self, sequence: Sequence) -> None:
        """Back to waiting; it keeps its tokens, and finds again what is still cached then."""
        self._leave(sequence, SequenceState.WAITING)
        self.counts.preempted += 1

    def clear(self) -> int:
        """Forgets every cached page that no running sequence holds; how many."""
        pages = self.tree.clear()
        self.allocator.free(pages)
        return len(pages)

    def page_table(self, sequences: SequenceOf[Sequence], fill: int = 0) -> I32:
        """int32[sequences, most pages]: the tables below each other, short ones filled up."""
        width = max((len(one.table) for one in sequences), default=0)
        table = np.full((len(sequences), width), fill, np.int32)
        for row, one in zip(table, sequences, strict=True):
            row[: len(one.table)] = one.table
        return table

    def take_events(self) -> list[KvEvent]:
        """What became cached and what went, see RadixCache.take_events."""
        return self.tree.take_events()

    def check(self) -> None:
        """Walks tree, free list, leases and tables: every page is in exactly one place, and all
        counts agree. Raises AssertionError."""
        check_manager(self.allocator, self.tree, self.running)

    def _fits(self, sequence: Sequence, lease: Lease) -> bool:
        """With the lease held: what it protects is no longer evictable."""
        needed = self._target(sequence) - len(lease.pages)
        return needed + self.reserved_pages <= self.available_pages

    def _target(self, sequence: Sequence) -> int:
        """Pages that the sequence has or may count on."""
        later = ceil(self._reserve_fraction * (sequence.tokens_max - len(sequence)))
        return max(pages_for(len(sequence) + later, self.page_size), len(sequence.table))

    def _missing(self, sequence: Sequence, tokens: int) -> int:
        return max(pages_for(tokens, self.page_size) - len(sequence.table), 0)

    def _allocate(self, count: int) -> I32:
        short = count - self.allocator.free_pages
        if short > 0:
            if short > self.tree.evictable_pages:
                raise OutOfPages(
                    f"{count} pages asked; {self.allocator.free_pages} are free and"
                    f" {self.tree.evictable_pages} can be evicted, of {self.allocator.pages}:"
                    " preempt a sequence, or wait for one to finish"
                )
            evicted = self.tree.evict(short)
            self.counts.evicted_pages += len(evicted)
            self.allocator.free(evicted)
        return self.allocator.allocate(count)

    def _share(self, sequence: Sequence, whole: int) -> int:
        mine = sequence.table[:whole]
        old = sequence.lease
        lease, _ = self.tree.insert(sequence.tokens, mine, sequence.namespace, owner=old)
        if old is not None:
            old.release()
        sequence.lease = lease
        twice = mine != lease.pages
        copies = mine[twice]
        mine[:] = lease.pages
        self.allocator.free(copies)
        self.counts.rewritten_pages += len(copies)
        return len(copies)

    def _leave(self, sequence: Sequence, state: SequenceState) -> None:
        self._expect(sequence, SequenceState.RUNNING)
        shared = sequence.shared_pages
        self.allocator.free(sequence.cut_table(shared))
        if sequence.lease is not None:
            sequence.lease.release()
        sequence.cut_table(0)
        sequence.lease = None
        sequence.computed_tokens = 0
        sequence.state = state
        del self._running[id(sequence)]

    def _expect(self, sequence: Sequence, state: SequenceState) -> None:
        known = (id(sequence) in self._running) == (state is SequenceState.RUNNING)
        if sequence.state is not state or not known:
            raise BadInput(f"this sequence is {sequence.state}, not {state} in this cache")
