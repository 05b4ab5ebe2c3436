"""Rows of a machine that follows the formula are predicted; one that does not is told."""

from typing import Any

import pytest

from moonpool.core.errors import BadInput
from moonpool.sparse.model import ERROR_MAX, Link, validate
from moonpool.sparse.model.observed import observations

SHM = Link(2e-5, 60e-9, 8e9, 11e9, 20e-9)
TCP = Link(1.5e-4, 90e-9, 4e9, 2.5e9, 25e-9)
LAYERS, TOP_K = 8, 2048


def rows_of(link: Link, transport: str, tokens: int, row_bytes: int) -> list[dict[str, Any]]:
    full_bytes, keys_bytes = tokens * row_bytes * LAYERS, tokens * 132 * LAYERS
    asked = LAYERS * TOP_K
    gather_s = asked * (link.row_s + row_bytes / link.gather_bytes_per_s)
    missed = asked // 7
    shared = {"bench": "sparse", "layers": LAYERS, "top_k": TOP_K}
    return [
        {
            "case": f"{tokens}-{row_bytes}-{transport}-resident",
            "full_bytes": full_bytes,
            "full_s": LAYERS * link.call_s + full_bytes / link.bulk_bytes_per_s,
            "step_s": LAYERS * link.call_s + gather_s,
            "step_one_call_s": link.call_s + gather_s,
            **shared,
        },
        {
            "case": f"{tokens}-{row_bytes}-{transport}-fetched",
            "keys_bytes": keys_bytes,
            "keys_s": LAYERS * link.call_s + keys_bytes / link.bulk_bytes_per_s,
            **shared,
        },
        {
            "case": f"{tokens}-{row_bytes}-{transport}-steady-4096",
            "pool_bytes_a_step": missed * row_bytes,
            "step_s": link.call_s
            + asked * link.resolve_s
            + missed * (link.row_s + row_bytes / link.gather_bytes_per_s),
            **shared,
        },
    ]


def machine() -> list[dict[str, Any]]:
    return [
        row
        for transport, link in (("shm", SHM), ("tcp", TCP))
        for tokens in (16384, 65536, 131072)
        for row_bytes in (656, 1152)
        for row in rows_of(link, transport, tokens, row_bytes)
    ]


def test_a_machine_that_follows_the_formula_is_predicted() -> None:
    shm, tcp = validate(machine())
    assert (shm.transport, tcp.transport) == ("shm", "tcp")
    for found, link in ((shm, SHM), (tcp, TCP)):
        assert found.tokens == 65536
        assert len(found.predicted) == 2 * 2 * 5  # two other lengths, two sizes, five figures
        assert all(one.observation.tokens != 65536 for one in found.predicted)
        assert found.worst < 1e-6
        assert tuple(found.link) == pytest.approx(tuple(link), rel=1e-3)


def test_a_length_that_behaves_otherwise_is_told() -> None:
    rows = machine()
    for row in rows:
        if row["case"] == "131072-656-shm-resident":
            row["step_s"] *= 1.5
    shm, tcp = validate(rows)
    assert shm.worst == pytest.approx(1 / 3) and shm.worst > ERROR_MAX
    assert tcp.worst < 1e-6
    worst = max(shm.predicted, key=lambda one: abs(one.error)).observation
    assert (worst.case, worst.figure) == ("131072-656-shm-resident", "step_s")


def with_costs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same machine, but lines cost more to touch the longer a prefix is, and a position that
    is named over TCP costs 30 ns."""
    answer = []
    for row in rows:
        tokens, row_bytes, transport, kind = str(row["case"]).split("-")[:4]
        touch_s = int(tokens) * 1e-12
        position_s = 30e-9 if transport == "tcp" else 0.0
        gather_s = LAYERS * TOP_K * (touch_s + position_s)
        row = dict(row)
        if kind == "resident":
            row["full_s"] += LAYERS * int(tokens) * position_s
            row["step_one_call_s"] += gather_s
            row["step_s"] += gather_s
        elif kind == "fetched":
            row["keys_s"] += LAYERS * int(tokens) / 64 * position_s
        else:
            missed = LAYERS * TOP_K // 7
            row["step_s"] += missed * (touch_s + position_s)
        answer.append(row)
    return answer


COSTS = [
    {
        "bench": "sparse",
        "case": f"{tokens}-{row_bytes}-machine-costs",
        "touch_ns": tokens * 1e-3,
        "position_ns": 30.0,
    }
    for tokens in (16384, 65536, 131072)
    for row_bytes in (656, 1152)
]


def test_costs_measured_on_their_own_are_not_fitted() -> None:
    """With them the machine is predicted; without them, only the length that calibrates is."""
    rows = with_costs(machine())
    for found, link in zip(validate([*COSTS, *rows]), (SHM, TCP), strict=True):
        assert found.worst < 1e-6
        assert tuple(found.link) == pytest.approx(tuple(link), rel=1e-3)
    assert max(found.worst for found in validate(rows)) > ERROR_MAX


def test_the_length_that_calibrates_can_be_named() -> None:
    assert {one.tokens for one in validate(machine(), 16384)} == {16384}
    with pytest.raises(BadInput, match="no rows of 1000 tokens"):
        validate(machine(), 1000)


def test_one_length_alone_validates_nothing() -> None:
    rows = [row for row in machine() if row["case"].startswith("16384-")]
    with pytest.raises(BadInput, match="two lengths"):
        validate(rows)
    with pytest.raises(BadInput, match="none"):
        validate([])


def test_figures_are_never_below_zero() -> None:
    rows = rows_of(SHM, "shm", 16384, 656) + rows_of(SHM, "shm", 65536, 656)
    for row in rows:
        if "steady" in row["case"]:
            row["step_s"] = 1e-6  # less than any work could take
    (found,) = validate(rows)
    assert min(found.link) >= 0


def test_other_rows_are_passed_over() -> None:
    other = [{"bench": "store", "case": "get"}, {"bench": "sparse", "case": "1-2-shm-union-4"}]
    assert observations([*other, {"bench": "sparse", "case": "1-2-shm-readers-4"}]) == []
