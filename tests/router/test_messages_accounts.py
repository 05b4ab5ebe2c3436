"""What an engine counts of its own cache, told in its events, beside what the brain holds of it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from moonpool.router import Brain, BrainConfig, Stored, Worker, prefix_hashes
from moonpool.router.index import WALKS_MAX
from tests.router.told import KEYS, as_map, brain_with, held, send


def account_of(keys: list[int]) -> dict[str, object]:
    counts, names = np.zeros(256, np.uint64), np.zeros(256, np.uint64)
    for key in keys:
        counts[key >> 56] += np.uint64(1)
        names[key >> 56] ^= np.uint64(key)
    told = {"counts": counts.tobytes(), "digests": names.tobytes()}
    return {"type": "CacheDigest", "medium": "GPU", **told}


def differing(brain: Brain, keys: list[int]) -> list[int]:
    [(_, _, differ)] = send(brain, account_of(keys)).accounts
    return [int(number) for number in np.flatnonzero(differ)]


WIDE = [key * 0x0123_4567_89AB_CDEF & 2**64 - 1 for key in KEYS]


@pytest.mark.parametrize("shared", [False, True])
def test_a_workers_own_account_tells_what_drifted(shared: bool) -> None:
    """Also where another worker named the same blocks first, so that these names are its own."""
    brain = brain_with()
    if shared:
        brain.add_worker(Worker(id="other", model="m", block_size=16))
        brain.apply_message("other", msgspec.msgpack.encode([1.0, [as_map()], 0]))
    send(brain, as_map(block_hashes=WIDE))
    assert differing(brain, WIDE) == []
    assert differing(brain, WIDE[:-1]) == [WIDE[-1] >> 56]  # it lost one and did not say so
    assert differing(brain, [*WIDE, 77]) == [0]  # it has one more
    assert brain.fleet.members["w"].drifted
    assert differing(brain, WIDE) == [] and not brain.fleet.members["w"].drifted


def test_ranges_told_anew_replace_what_was_known_of_them() -> None:
    brain = brain_with()
    send(brain, as_map(block_hashes=WIDE))
    last = WIDE[-1] >> 56
    ranges = (1 << last).to_bytes(32, "little")
    applied = send(brain, {"type": "RangesCleared", "medium": "GPU", "ranges": ranges})
    gone = [key for key in WIDE if key >> 56 == last]
    assert (applied.renewed_ranges, applied.renewed) == (1, len(gone))
    kept = [key for key in WIDE if key >> 56 != last]
    assert differing(brain, kept) == []
    send(brain, as_map(block_hashes=WIDE))
    assert differing(brain, WIDE) == [] and held(brain) == 160
    assert brain.intake.renewed_blocks == len(gone)


def test_a_message_has_so_many_looks_at_the_whole_index() -> None:
    brain = brain_with()
    send(brain, as_map())
    cleared = {"type": "RangesCleared", "medium": "GPU", "ranges": bytes(32)}
    applied = send(brain, *[account_of(WIDE), cleared] * WALKS_MAX, as_map(type="BlockRemoved"))
    assert len(applied.accounts) == applied.renewed_ranges == WALKS_MAX // 2
    assert (applied.walks, applied.ignored_events) == (2 * WALKS_MAX, WALKS_MAX)
    assert applied.removed == 10, "what comes after them counts"


def test_an_account_counts_for_nothing_where_the_index_had_no_room() -> None:
    brain = Brain(BrainConfig(index_bytes_max=1 << 20))
    brain.add_worker(Worker(id="w", model="m", block_size=16))
    send(brain, as_map(block_hashes=WIDE))
    for tag in range(100):
        brain.intake.apply_pool([Stored(prefix_hashes([tag] * 16 * 999, 16).tolist())])
    assert brain.index.stat()["evicted"] > 0
    assert send(brain, account_of(WIDE)).accounts == []
    assert len(send(brain, account_of(WIDE)).accounts) == 1, "nothing was evicted meanwhile"
