"""The replaying client against a pool in a dictionary."""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import pytest

from moonpool.cli.replay.driver import Replayer, block_key
from moonpool.core.errors import NotReady, Unreachable
from moonpool.planner.replay import Figures, Ledger
from moonpool.planner.stamps import Stamper
from moonpool.planner.traces import Request, Trace
from moonpool.pool.results import Hit, Miss, MissReason, PrefixMatch, PutResult, PutStatus
from tests.cli.replay.fake_pool import FakePool

MINI = Trace(
    "mini",
    tuple(
        Request(index, length, 1, ids)
        for index, (length, ids) in enumerate(
            [
                (1536, [1, 2, 3]),
                (1536, [1, 2, 4]),
                (512, [5]),
                (1500, [1, 2, 3]),
                (1024, [5, 6]),
                (2048, [1, 2, 4, 7]),
                (100, [8]),
            ]
        )
    ),
)
BLOCK_BYTES = 64


def replay(pool: FakePool, trace: Trace = MINI) -> Figures:
    ledger = Ledger(trace.block_tokens)
    Replayer(pool, trace, Stamper(BLOCK_BYTES, seed=1), ledger).run()
    return ledger.figures()


@pytest.mark.parametrize(
    ("capacity", "blocks", "tokens"), [(3, 5, 2560), (4, 7, 3584), (5, 8, 4060), (99, 9, 4572)]
)
def test_the_mini_case_has_its_known_values(capacity: int, blocks: int, tokens: int) -> None:
    figures = replay(FakePool(capacity))
    assert (figures.prefix_hit_blocks, figures.hit_tokens) == (blocks, tokens)
    assert figures.errors == {}


def test_it_counts_the_bytes_it_read_and_wrote() -> None:
    figures = replay(FakePool())
    assert figures.bytes_read == 9 * BLOCK_BYTES
    assert figures.bytes_written == 8 * BLOCK_BYTES


def test_missing_blocks_are_written_as_a_chain() -> None:
    pool = FakePool()
    replay(pool)
    parent = {block: pool.parents[block_key(block)] for block in (1, 2, 4, 7)}
    assert parent == {1: None, 2: block_key(1), 4: block_key(2), 7: block_key(4)}


def test_a_miss_with_a_reason_ends_the_prefix_and_is_an_error() -> None:
    pool = FakePool()
    replay(pool, MINI.head(1))
    pool.broken[block_key(2)] = MissReason.CORRUPT
    figures = replay(pool, MINI.head(1))
    assert figures.errors == {"corrupt": 1}
    assert (figures.prefix_hit_blocks, figures.hit_tokens) == (1, 512)
    assert figures.bytes_read == 2 * BLOCK_BYTES
    assert figures.bytes_written == BLOCK_BYTES
    assert replay(pool, MINI.head(1)).errors == {}


def test_wrong_bytes_that_the_pool_calls_a_hit_are_no_hit() -> None:
    pool = FakePool()
    replay(pool, MINI.head(1))
    pool.values[block_key(1)][20] ^= 1
    pool.sums[block_key(1)] = crc32(pool.values[block_key(1)])
    figures = replay(pool, MINI.head(1))
    assert figures.errors == {"wrong_bytes": 1}
    assert figures.prefix_hit_blocks == 0


def test_a_value_of_another_size_is_no_hit() -> None:
    class Short(FakePool):
        def get_many_into(
            self, keys: Sequence[bytes], buffers: Sequence[memoryview]
        ) -> list[Hit | Miss]:
            answers = super().get_many_into(keys, buffers)
            return [Hit(BLOCK_BYTES - 1, "fake") if a.ok else a for a in answers]

    assert replay(Short()).hit_tokens == 0


def test_a_prefix_cut_short_by_an_unreachable_block_says_why() -> None:
    class Cut(FakePool):
        def match_prefix(self, keys: object) -> PrefixMatch:
            return PrefixMatch(0, 0, [], 0)

    pool = Cut()
    ledger = Ledger(512)
    replayer = Replayer(pool, MINI, Stamper(BLOCK_BYTES, seed=1), ledger)

    def lose_block_1(index: int) -> None:
        if index == 1:
            pool.broken[block_key(1)] = MissReason.UNREACHABLE

    replayer.run(before=lose_block_1)
    assert ledger.figures().errors == {"unreachable": 1}


def test_a_refused_put_is_an_error_and_a_full_pool_is_not() -> None:
    pool = FakePool()
    pool.put_status = PutStatus.LOST
    assert replay(pool, MINI.head(1)).errors == {"put_lost": 3}
    pool.put_status = PutStatus.FULL
    assert replay(pool, MINI.head(1)).errors == {}


def test_a_pool_that_fails_altogether_ends_the_replay() -> None:
    class Dead(FakePool):
        def match_prefix(self, keys: object) -> PrefixMatch:
            raise NotReady("no node has joined")

    ledger = Ledger(512)
    with pytest.raises(Unreachable, match="3 requests in a row: no node has joined"):
        Replayer(Dead(), MINI, Stamper(BLOCK_BYTES, seed=1), ledger).run()
    assert ledger.figures().errors == {"not_ready": 3}


def test_while_no_node_is_there_it_puts_ever_less_often() -> None:
    class Lonely(FakePool):
        tries = 0

        def put_many(self, *args: Any, **kwargs: Any) -> list[PutResult]:
            self.tries += 1
            return super().put_many(*args, **kwargs)

    pool = Lonely()
    pool.put_status = PutStatus.UNREACHABLE
    trace = Trace("same", tuple(Request(0, 512, 1, [1]) for _ in range(1000)))
    assert replay(pool, trace).errors == {"put_unreachable": 1000}
    assert pool.tries == 9
    pool.put_status = None
    assert replay(pool, trace).prefix_hit_blocks == 999
