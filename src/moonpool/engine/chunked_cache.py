"""The cache manager as this engine needs it: prefixes are reused in whole chunks of prompts.

What a chunk's pass gave is equal to the bit each time; what single steps gave for the same tokens
is not. So only whole chunks become shared (the engine commits nothing else), and neither the rest
of a prompt nor generated tokens are ever looked up.
"""

from __future__ import annotations

from moonpool.cache.allocator import PageAllocator
from moonpool.cache.manager import CacheManager
from moonpool.cache.radix import Lease
from moonpool.cache.sequence import Sequence


class ChunkedCache(CacheManager):
    """Matches at most the whole chunks of the prompt before its last token."""

    def __init__(
        self,
        allocator: PageAllocator,
        page_size: int,
        *,
        chunk_tokens: int,
        reserve_fraction: float,
        events_max: int = 0,
    ) -> None:
        super().__init__(
            allocator, page_size, reserve_fraction=reserve_fraction, events_max=events_max
        )
        self.chunk_tokens = chunk_tokens

    def reusable_tokens(self, sequence: Sequence) -> int:
        """Of its prompt, what may come from anywhere but its own passes."""
        return (sequence.prompt_tokens - 1) // self.chunk_tokens * self.chunk_tokens

    def hold(self, sequence: Sequence, tokens: int) -> Lease:
        """The cached part of the first `tokens` tokens, held for somebody who reads its pages."""
        return self.tree.match(sequence.tokens[:tokens], sequence.namespace, keep=0, touch=False)

    def match(self, sequence: Sequence) -> Lease:
        """The cached part of its reusable tokens, in whole chunks, held."""
        lease = self.hold(sequence, self.reusable_tokens(sequence))
        odd = lease.tokens % self.chunk_tokens
        if odd:
            lease.release()
            lease = self.hold(sequence, lease.tokens - odd)
        return lease
