"""Faults on purpose: their spelling, their moments, and that they do harm."""

import pytest

from moonpool.cli.replay.driver import Replayer
from moonpool.cli.replay.inject import Faults, Injector, parse_faults
from moonpool.core.errors import BadInput
from moonpool.planner.replay import Ledger
from moonpool.planner.stamps import Stamper
from tests.cli.replay.fake_pool import FakePool
from tests.cli.replay.test_driver import BLOCK_BYTES, MINI


def test_faults_add_up() -> None:
    assert parse_faults([], 7) == Faults()
    texts = ["kill-node:6", "corrupt:3", "corrupt:2", "kill-node:0"]
    assert parse_faults(texts, 7) == Faults(corrupt=5, kill_node=(0, 6))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("corupt:3", "Did you mean 'corrupt'?"),
        ("corrupt", "write corrupt:NUMBER"),
        ("corrupt:-1", "write corrupt:NUMBER"),
        ("kill-node:x", "write kill-node:NUMBER"),
        ("kill-node:7", "the replay has 7 requests"),
    ],
)
def test_a_fault_it_does_not_know_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_faults([text], 7)


def run(faults: Faults, seed: int) -> tuple[Ledger, Injector, list[int]]:
    pool, kills = FakePool(), list[int]()
    ledger = Ledger(512)
    now = [0]
    injector = Injector(faults, MINI, pool, lambda: kills.append(now[0]), seed)

    def before(index: int) -> None:
        now[0] = index
        injector(index)

    Replayer(pool, MINI, Stamper(BLOCK_BYTES, seed=1), ledger).run(before)
    return ledger, injector, kills


@pytest.mark.parametrize("seed", range(20))
def test_each_flipped_byte_is_read_and_seen(seed: int) -> None:
    ledger, injector, _ = run(Faults(corrupt=1), seed)
    assert injector.corrupted == ledger.errors["corrupt"]
    lost = 4572 - ledger.figures().hit_tokens
    assert lost >= 0
    assert injector.corrupted == 0 or lost > 0


def test_the_same_seed_does_the_same() -> None:
    first, second = (run(Faults(corrupt=2), seed=5)[0].figures().hit_tokens for _ in range(2))
    assert first == second


def test_nodes_are_killed_before_their_request() -> None:
    assert run(Faults(kill_node=(2, 2, 6)), seed=0)[2] == [2, 2, 6]
