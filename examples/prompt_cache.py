"""A cache of prompt blocks in one process: what was computed once is not computed again.

python examples/prompt_cache.py
"""

import numpy as np

import moonpool
from moonpool.core.keys import KeySpec

BLOCK_TOKENS = 16
SPEC = KeySpec(
    model="example/model@1",
    dtype="float16",
    layout="layer,kv,token,head,dim",
    block_size=BLOCK_TOKENS,
)
BLOCK_SHAPE = (4, 2, BLOCK_TOKENS, 2, 32)  # as SPEC.layout says


def compute(tokens: np.ndarray) -> np.ndarray:
    """Stands for a model's prefill of one block."""
    return np.resize(tokens, BLOCK_SHAPE).astype(np.float16)


def prefill(pool: moonpool.Pool, tokens: np.ndarray) -> int:
    """Bring the cache of a prompt together; how many of its blocks came from the pool."""
    keys = SPEC.keys(tokens)
    blocks = [np.empty(BLOCK_SHAPE, np.float16) for _ in keys]
    hits = pool.match_prefix(keys).count
    answers = pool.get_many_into(keys[:hits], blocks[:hits])
    while hits and not all(answer.ok for answer in answers[:hits]):
        hits -= 1  # a block left the pool in between: only the blocks before it count
    for i in range(hits, len(keys)):
        blocks[i] = compute(tokens[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS])
    parent = keys[hits - 1] if hits else None
    pool.put_many(keys[hits:], blocks[hits:], parents="chain", parent=parent)
    for i, block in enumerate(blocks):
        assert (block == compute(tokens[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS])).all()
    return hits


def main() -> None:
    rng = np.random.default_rng(1)
    system, chat, other = (rng.integers(0, 32_000, n, dtype=np.uint32) for n in (64, 160, 96))
    with moonpool.Pool.local(memory="64MiB") as pool:
        prompts = {
            "first question": np.concatenate([system, chat[:80]]),
            "follow-up of it": np.concatenate([system, chat]),
            "another user": np.concatenate([system, other]),
        }
        for name, tokens in prompts.items():
            hits = prefill(pool, tokens)
            print(f"{name}: {hits} of {len(tokens) // BLOCK_TOKENS} blocks were there already")


if __name__ == "__main__":
    main()
