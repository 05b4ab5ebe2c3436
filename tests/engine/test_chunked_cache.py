"""Which cached pages a prompt may use: whole chunks of it, and nothing of its answer."""

import numpy as np

from moonpool.cache.allocator import PageAllocator
from moonpool.engine.chunked_cache import ChunkedCache
from tests.engine.steps import prompt_of

PAGE, CHUNK = 4, 8


def cached(tokens: int) -> tuple[ChunkedCache, list[int]]:
    """A cache that holds the first `tokens` tokens of what it returns."""
    cache = ChunkedCache(PageAllocator(30), PAGE, chunk_tokens=CHUNK, reserve_fraction=0.0)
    prompt = prompt_of(40)
    first = cache.sequence(prompt, 40)
    assert cache.admit(first)
    cache.grow(first, tokens)
    cache.commit(first, tokens)
    cache.finish(first)
    return cache, prompt


def test_whole_chunks_before_the_last_token() -> None:
    for length, reused in ((8, 0), (9, 8), (16, 8), (17, 16), (40, 32)):
        cache, prompt = cached(40)
        sequence = cache.sequence(prompt[:length], length)
        assert cache.admit(sequence) and sequence.cached_tokens == reused
        cache.check()


def test_half_a_chunk_is_not_used() -> None:
    """Eviction takes single pages, from the end."""
    cache, prompt = cached(32)
    cache.allocator.free(cache.tree.evict(1))
    sequence = cache.sequence(prompt, 40)
    assert cache.admit(sequence) and sequence.cached_tokens == 24
    assert len(sequence.table) == 24 // PAGE
    cache.check()


def test_an_answer_is_not_looked_up() -> None:
    """Somebody else had these tokens as a prompt; here single steps computed them."""
    cache, prompt = cached(40)
    sequence = cache.sequence(prompt[:12], 40)
    sequence.append(*prompt[12:30])
    assert cache.admit(sequence) and sequence.cached_tokens == 8
    cache.check()


def test_what_is_held_stays() -> None:
    cache, prompt = cached(32)
    lease = cache.hold(cache.sequence(prompt, 40), 16)
    assert lease.tokens == 16
    assert len(cache.tree.evict(30)) == (32 - 16) // PAGE
    assert np.isin(lease.pages, cache.tree.check()).all()
    lease.release()
