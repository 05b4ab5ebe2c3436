"""Rows of a machine that follows the formula are predicted; one that does not is told."""

from typing import Any

import pytest

from moonpool.core.errors import BadInput
from moonpool.sparse.model import ERROR_MAX, validate
from moonpool.sparse.model.observed import Fitted, observations

SHM = Fitted(2e-5, 0.5, 0.0, 0.0, 1.5, 20e-9)
TCP = Fitted(1.5e-4, 0.9, 1.2, 0.4, 0.0, 25e-9)
LAYERS, TOP_K = 8, 2048
POSITION_NS = 30.0


def walk_ns(tokens: int) -> float:
    return tokens * 1e-4


def timed(**seconds: float) -> dict[str, float]:
    """As the bench tells times: the fastest lap, and a median that is a tenth above it."""
    medians = {f"{name}_s": 1.1 * value for name, value in seconds.items()}
    return medians | {f"{name}_fastest_s": value for name, value in seconds.items()}


def rows_of(fitted: Fitted, transport: str, tokens: int, row_bytes: int) -> list[dict[str, Any]]:
    """Of a machine whose speed changes from length to length."""
    speed = 1 + tokens // 1000 % 7 / 10
    full_bytes, keys_bytes = tokens * row_bytes * LAYERS, tokens * 132 * LAYERS
    asked, missed = LAYERS * TOP_K, LAYERS * TOP_K // 7
    part, call_s = missed / asked, fitted.call_s
    limit_s = speed * full_bytes / 5e9
    private_s = speed * asked * row_bytes / 6e9
    walks_s = asked * (1 + (row_bytes - 1) / 4096) * walk_ns(tokens) / 1e9
    full_s = fitted.in_order * limit_s + LAYERS * call_s
    keys_s = fitted.in_order * limit_s * keys_bytes / full_bytes + LAYERS * call_s
    if transport == "shm":
        step_s = private_s + fitted.walked * walks_s
        one_call_s = step_s - (LAYERS - 1) * call_s
        steady_s = part * step_s + (1 - part * LAYERS) * call_s
        beside = {"limit": limit_s}
    else:
        position_s = POSITION_NS / 1e9
        # The plain program, of another pace for each shape of frames.
        beside = {
            "limit": limit_s,
            "plain_keys": 1.3 * limit_s * keys_bytes / full_bytes,
            "plain_step": 0.7 * limit_s * TOP_K / tokens,
            "plain_one_call": 0.6 * limit_s * TOP_K / tokens,
            "plain": 0.5 * part * limit_s * TOP_K / tokens,
        }
        packed_s = private_s + walks_s
        full_s = fitted.in_order * limit_s + LAYERS * (call_s + tokens * position_s)
        keys_s = fitted.in_order * beside["plain_keys"] + LAYERS * (
            call_s + tokens / 64 * position_s
        )
        named_s = asked * position_s
        step_s = fitted.in_order * beside["plain_step"] + LAYERS * call_s + named_s
        step_s += fitted.gathered * packed_s
        one_call_s = fitted.in_order * beside["plain_one_call"] + call_s + named_s
        one_call_s += fitted.beside * packed_s
        steady_s = fitted.in_order * beside["plain"] + call_s + part * named_s
        steady_s += fitted.beside * part * packed_s
    private = timed(private_step=private_s, **beside)
    shared = {"bench": "sparse", "layers": LAYERS, "top_k": TOP_K, **private}
    shared |= {"full_bytes": full_bytes, "step_bytes": asked * row_bytes}
    whole = timed(full=full_s, step=step_s, step_one_call=one_call_s)
    steady = timed(step=steady_s + asked * fitted.resolve_s)
    name = f"{tokens}-{row_bytes}-{transport}"
    return [
        {
            "bench": "sparse",
            "case": f"{tokens}-{row_bytes}-machine-costs",
            "touch_ns": 20.0 + walk_ns(tokens),
            "private_touch_ns": 20.0,
            "position_ns": POSITION_NS,
        },
        {"case": f"{name}-resident", **shared, **whole},
        {
            "case": f"{name}-fetched",
            "keys_bytes": keys_bytes,
            **shared,
            **whole,
            **timed(keys=keys_s),
        },
        {
            "case": f"{name}-steady-4096",
            "pool_bytes_a_step": missed * row_bytes,
            **shared,
            **steady,
        },
    ]


def machine() -> list[dict[str, Any]]:
    return [
        row
        for transport, fitted in (("shm", SHM), ("tcp", TCP))
        for tokens in (16384, 65536, 131072)
        for row_bytes in (656, 1152)
        for row in rows_of(fitted, transport, tokens, row_bytes)
    ]


def test_a_machine_that_follows_the_formula_is_predicted() -> None:
    shm, tcp = validate(machine())
    assert (shm.transport, tcp.transport) == ("shm", "tcp")
    for found, fitted in ((shm, SHM), (tcp, TCP)):
        assert found.tokens == 65536
        assert len(found.predicted) == 2 * 2 * 5  # two other lengths, two sizes, five figures
        assert all(one.observation.tokens != 65536 for one in found.predicted)
        assert found.worst < 1e-6
        assert tuple(found.fitted) == pytest.approx(tuple(fitted), rel=1e-3)


def test_a_length_that_behaves_otherwise_is_told() -> None:
    rows = machine()
    for row in rows:
        if row["case"] == "131072-656-shm-resident":
            row["step_fastest_s"] *= 1.5
    shm, tcp = validate(rows)
    assert shm.worst == pytest.approx(1 / 3) and shm.worst > ERROR_MAX
    assert tcp.worst < 1e-6
    worst = max(shm.predicted, key=lambda one: abs(one.error)).observation
    assert (worst.case, worst.figure) == ("131072-656-shm-resident", "step")


def test_what_was_measured_beside_is_not_fitted() -> None:
    """A machine twice as slow at one length is predicted; rows that were slow alone are not."""
    rows = machine()
    for row in rows:
        if row["case"].startswith("131072-656-shm-"):
            for name in ("full", "keys", "limit"):
                row[f"{name}_fastest_s"] = 2 * row.get(f"{name}_fastest_s", 0)
    assert validate(rows)[0].worst < 0.01
    for row in rows:
        if row["case"].startswith("131072-656-shm-resident"):
            row["limit_fastest_s"] /= 2
    assert validate(rows)[0].worst > ERROR_MAX


def test_medians_are_held_against_medians() -> None:
    rows = machine()
    assert all(found.worst < 0.05 for found in validate(rows, laps="median"))
    for row in rows:
        if row["case"].startswith("16384-656-tcp-resident"):
            row["full_s"] *= 2
    shm, tcp = validate(rows, laps="median")
    assert shm.worst < 0.05 and tcp.worst > ERROR_MAX
    assert all(found.worst < 1e-6 for found in validate(rows))


def test_rows_without_what_was_measured_beside_them_are_told() -> None:
    names = ("private_touch_ns", "private_step_fastest_s", "limit_fastest_s", "plain_fastest_s")
    for name in names:
        rows = [{key: row[key] for key in row if key != name} for row in machine()]
        with pytest.raises(BadInput, match=f"lack '{name}'"):
            validate(rows)


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
            row["step_fastest_s"] = 1e-6  # less than any work could take
    (found,) = validate(rows)
    assert min(found.fitted) >= 0


def test_other_rows_are_passed_over() -> None:
    other = [{"bench": "store", "case": "get"}, {"bench": "sparse", "case": "1-2-shm-union-4"}]
    assert observations([*other, {"bench": "sparse", "case": "1-2-shm-readers-4"}]) == []
