"""The replaying client against the embedded pool: the serving code, without processes."""

import pytest

import moonpool
from moonpool.cli.replay.driver import Replayer
from moonpool.cli.replay.inject import Faults, Injector
from moonpool.planner import load
from moonpool.planner.replay import Figures, Ledger
from moonpool.planner.stamps import Stamper
from moonpool.planner.traces import Trace
from tests.cli.replay.test_driver import MINI

BLOCK_BYTES = 4096
NO_FAULTS = Faults()


def replay(trace: Trace, capacity: int, faults: Faults = NO_FAULTS, seed: int = 0) -> Figures:
    ledger = Ledger(trace.block_tokens)
    with moonpool.Pool.local(capacity * BLOCK_BYTES, slots=capacity + 4096) as pool:
        injector = Injector(faults, trace, pool, lambda: None, seed)
        Replayer(pool, trace, Stamper(BLOCK_BYTES, seed), ledger).run(before=injector)
    return ledger.figures()


@pytest.mark.parametrize(
    ("capacity", "blocks", "tokens"), [(3, 5, 2560), (4, 7, 3584), (5, 8, 4060), (99, 9, 4572)]
)
def test_the_mini_case_has_its_known_values(capacity: int, blocks: int, tokens: int) -> None:
    figures = replay(MINI, capacity)
    assert (figures.prefix_hit_blocks, figures.hit_tokens) == (blocks, tokens)
    assert figures.errors == {}


@pytest.mark.parametrize("seed", range(3))
def test_flipped_bytes_are_seen_and_repaired(seed: int) -> None:
    trace = load("conversation").head(300)
    clean = replay(trace, 20_000)
    broken = replay(trace, 20_000, Faults(corrupt=7), seed)
    assert clean.errors == {}
    assert broken.errors == {"corrupt": 7}
    assert broken.hit_tokens < clean.hit_tokens
    assert broken.bytes_written == clean.bytes_written + 7 * BLOCK_BYTES
