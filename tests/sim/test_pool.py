"""The pool under faults, from seeds. Replay one: pytest tests/sim -k one_seed --seed N."""

from __future__ import annotations

import pytest

from tests.sim.scenario import Scenario

SEEDS_A_TEST = 25


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "first_seed" in metafunc.fixturenames:
        seeds = metafunc.config.getoption("--seeds")
        metafunc.parametrize("first_seed", range(0, seeds, SEEDS_A_TEST))


def check(seed: int) -> tuple[int, int]:
    """How many objects came to lie on tiers, and how many were read from there."""
    scenario = Scenario(seed)
    try:
        problems = scenario.run()
        if problems:
            found = "\n".join(problems[:10])
            trace = "\n".join(scenario.pool.world.trace[-60:])
            pytest.fail(
                f"seed {seed} {scenario.pool.shape}\n{found}\n"
                f"replay: pytest tests/sim -k one_seed --seed {seed}\n{trace}"
            )
        tiers = scenario.pool.tiers
        return sum(tier.kept for tier in tiers), sum(tier.served for tier in tiers)
    finally:
        scenario.close()


@pytest.mark.soak
def test_promises_hold_under_faults(first_seed: int) -> None:
    found = [check(seed) for seed in range(first_seed, first_seed + SEEDS_A_TEST)]
    assert sum(kept for kept, _ in found), "no object came to lie on a tier"
    assert sum(served for _, served in found), "no object was read from a tier"


def test_one_seed(request: pytest.FixtureRequest) -> None:
    check(request.config.getoption("--seed"))
