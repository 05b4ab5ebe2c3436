"""What moving bytes costs, and that every number from outside says where it is from."""

import pytest

from moonpool.sparse.model import CONSTANTS, LINKS, Link, Prefix, first_step, link_checks


def test_every_constant_has_a_source() -> None:
    assert len({constant.name for constant in CONSTANTS}) == len(CONSTANTS) > 20
    for constant in CONSTANTS:
        assert constant.value > 0 and constant.source
        assert constant.kind in ("published", "specified", "assumed")


def test_times_are_calls_rows_and_bytes() -> None:
    link = Link(call_s=1e-5, row_s=1e-7, gather_bytes_per_s=1e9, bulk_bytes_per_s=4e9)
    found = first_step(Prefix(131072, 656), link)
    assert found.full_s == pytest.approx(61e-5 + 61 * 131072 * 656 / 4e9)
    assert found.keys_s == pytest.approx(61e-5 + 61 * 131072 * 132 / 4e9)
    assert found.step_s == pytest.approx(61e-5 + 61 * 2048 * (1e-7 + 656 / 1e9))


def test_fetched_keys_bound_every_gain() -> None:
    for link in LINKS.values():
        for row_bytes in (656, 1152):
            prefix = Prefix(131072, row_bytes)
            assert first_step(prefix, link).fetched_ratio < prefix.ceiling
    assert Prefix(131072, 1152).ceiling == pytest.approx(9.727, abs=1e-3)


def test_single_rows_by_rdma_lose_what_packing_wins() -> None:
    prefix = Prefix(131072, 1152)
    assert first_step(prefix, LINKS["rdma-100"]).resident_ratio < 2
    assert first_step(prefix, LINKS["rdma-100-packed"]).resident_ratio > 20


def test_a_short_prefix_is_read_whole_by_its_first_step() -> None:
    assert Prefix(1000, 656).step_rows == 61 * 1000


def test_published_transfers_that_set_no_constant_come_out() -> None:
    for check in link_checks():
        assert abs(check.error) < 0.10, check
