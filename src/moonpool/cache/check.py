"""The one check of a cache manager: every page in exactly one place, every count right.

It walks everything, so tests run it after each step and an engine when it is idle.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from moonpool.cache.allocator import PageAllocator
from moonpool.cache.radix import RadixCache
from moonpool.cache.sequence import Sequence, SequenceState


def check_manager(allocator: PageAllocator, tree: RadixCache, running: Iterable[Sequence]) -> None:
    """Raises AssertionError with what does not hold."""
    sequences = list(running)
    allocator.check()
    cached = tree.check()
    places = [allocator.free_list(), cached]
    for sequence in sequences:
        _check_sequence(sequence, tree)
        places.append(sequence.table[sequence.shared_pages :])
    everywhere = np.concatenate(places)
    counted = np.bincount(everywhere, minlength=allocator.pages)
    assert len(counted) == allocator.pages, f"page {int(everywhere.max())} is none of this pool"
    lost, doubled = np.flatnonzero(counted == 0), np.flatnonzero(counted > 1)
    assert not lost.size, f"pages in no place: {lost[:8]}"
    assert not doubled.size, f"pages in several places: {doubled[:8]}"
    held = sum(1 for one in sequences if one.lease is not None)
    assert held <= tree.leases, f"{held} sequences hold leases, the tree knows {tree.leases}"
    shared = [one.table[: one.shared_pages] for one in sequences]
    covered = len(np.unique(np.concatenate(shared))) if shared else 0
    if held == tree.leases:  # nobody else holds any
        assert covered == tree.protected_pages, f"{tree.protected_pages} protected, not {covered}"


def _check_sequence(sequence: Sequence, tree: RadixCache) -> None:
    assert sequence.state is SequenceState.RUNNING, f"a {sequence.state} sequence is running"
    lease, table = sequence.lease, sequence.table
    assert lease is not None and lease.held, "a running sequence without a lease"
    assert (table[: len(lease.pages)] == lease.pages).all(), "a table and its lease disagree"
    found = tree.lookup(sequence.tokens[: lease.tokens], sequence.namespace, keep=0)
    assert found == lease.tokens, f"{found} of {lease.tokens} leased tokens are cached"
    assert lease.tokens <= sequence.computed_tokens <= len(sequence), "more shared than computed"
    assert sequence.computed_tokens <= sequence.room_tokens, "more computed than there is room"
