"""Leaders killed, stopped and woken, nodes that return, an etcd that is away: from seeds.

Replay one: pytest tests/sim -k one_election --seed N.
"""

from __future__ import annotations

import pytest

from tests.sim.election_pool import Elections

SEEDS_A_TEST = 10


def check(seed: int) -> int:
    """How many terms there were."""
    scenario = Elections(seed)
    try:
        problems = scenario.run()
        if problems:
            found = "\n".join(problems[:10])
            trace = "\n".join(scenario.pool.world.trace[-60:])
            pytest.fail(
                f"seed {seed} {scenario.pool.shape}\n{found}\n"
                f"replay: pytest tests/sim -k one_election --seed {seed}\n{trace}"
            )
        return sum("leads under" in line for line in scenario.pool.world.trace)
    finally:
        scenario.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "first_seed" in metafunc.fixturenames:
        seeds = metafunc.config.getoption("--seeds") // 15
        metafunc.parametrize("first_seed", range(0, seeds, SEEDS_A_TEST))


@pytest.mark.soak
def test_promises_hold_over_elections(first_seed: int) -> None:
    terms = [check(seed) for seed in range(first_seed, first_seed + SEEDS_A_TEST)]
    assert max(terms) > 1, "no leader was ever replaced"


def test_one_election(request: pytest.FixtureRequest) -> None:
    check(request.config.getoption("--seed"))
