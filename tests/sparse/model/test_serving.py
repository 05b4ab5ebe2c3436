"""Closed loops whose outcome can be counted by hand."""

import pytest

from moonpool.sparse.model import Load, Side, serve

PLAIN = Side(fetch_s=0.0, fixed_s=0.0, floor_s=0.02, request_step_s=0.001)


def test_a_lone_client_decodes_step_after_step() -> None:
    got = serve(PLAIN, Load(clients=1, outputs=100, waves=3))
    assert got.tokens_per_s == pytest.approx(1 / 0.021)
    assert (got.ttft_s, got.tbt_s) == pytest.approx((0.021, 0.021))


def test_all_clients_share_each_step() -> None:
    got = serve(PLAIN, Load(clients=10, outputs=100, waves=2))
    assert got.tokens_per_s == pytest.approx(10 / 0.03)
    assert got.tbt_s == pytest.approx(0.03)


def test_a_slow_queue_of_fetches_decides_alone() -> None:
    side = PLAIN._replace(fetch_s=10.0)  # 100 steps take 2.1 s: nobody decodes beside another
    got = serve(side, Load(clients=4, outputs=100, waves=2))
    assert got.tokens_per_s == pytest.approx(8 * 100 / (8 * 10 + 2.1))
    assert got.tbt_s == pytest.approx(0.021)


def test_those_who_come_first_wait_for_those_before_them() -> None:
    side = PLAIN._replace(fetch_s=1.0, fixed_s=0.5, request_step_s=0.0)
    got = serve(side, Load(clients=3, outputs=1000, waves=1))
    assert got.ttft_s == pytest.approx((1 + 2 + 3) / 3 + 0.5 + 0.02)


def test_fetches_slow_decode_only_while_they_run() -> None:
    alone = PLAIN._replace(fetch_s=1.0, request_step_s=0.0)
    halved = alone._replace(fetching_speed=0.5)
    load = Load(clients=2, outputs=100, waves=1)
    # The first decodes 50 steps at full speed, 25 slowly beside the second fetch, or 50 without.
    assert serve(alone, load).tbt_s == pytest.approx(0.02)
    # 1 s at half speed is 25 steps, the other 75 take 1.5 s; the second is not disturbed.
    assert serve(halved, load).tbt_s == pytest.approx(((1 + 1.5) / 100 + 0.02) / 2)
