"""Ratios and verdicts from rows alone."""

import pytest
from bench.report import number, table
from bench.rows import Row, problems_of
from bench.targets import TARGETS, Side, Target, against, reach, verdict_row, verdicts

OURS, THEIRS = Side("moonpool", "store", "get"), Side("redis", "store", "get")
FASTER = Target("get", "p50_us", OURS, THEIRS, at_most=1 / 8)
MORE = Target("get", "ops_per_s", OURS, THEIRS, at_least=2)


def row(side: Side, **figures: object) -> Row:
    return {**side._asdict(), "version": "1.0", "rounds": 3, **figures}


@pytest.mark.parametrize(("ours", "reached"), [(10.0, True), (12.5, True), (13.0, False)])
def test_at_most_is_on_ours_over_theirs(ours: float, reached: bool) -> None:
    rows = [row(OURS, p50_us=ours), row(THEIRS, p50_us=100.0)]
    (verdict,) = verdicts(rows, [FASTER])
    assert (verdict.value, verdict.reached) == (ours / 100, reached)


@pytest.mark.parametrize(("ours", "reached"), [(200.0, True), (199.0, False)])
def test_at_least_is_on_ours_over_theirs(ours: float, reached: bool) -> None:
    rows = [row(OURS, ops_per_s=ours), row(THEIRS, ops_per_s=100)]
    assert verdicts(rows, [MORE])[0].reached is reached


def test_a_target_without_a_rival_is_on_the_figure() -> None:
    (verdict,) = verdicts([row(OURS, p50_us=4.5)], [Target("view", "p50_us", OURS, at_most=5)])
    assert (verdict.value, verdict.reached, against(verdict)) == (4.5, True, "")


def test_a_line_without_a_target_is_neither_reached_nor_missed() -> None:
    rows = [row(OURS, p50_us=1.0), row(THEIRS, p50_us=2.0)]
    (verdict,) = verdicts(rows, [Target("seen", "p50_us", OURS, THEIRS)])
    assert (verdict.value, verdict.reached, reach(verdict.target)) == (0.5, None, "")


def test_what_was_not_measured_is_not_reached_either() -> None:
    assert verdicts([row(OURS, p50_us=1.0)], [FASTER])[0].reached is None


def test_figures_of_wrong_bytes_do_not_count() -> None:
    rows = [row(OURS, p50_us=1.0, ok=False), row(THEIRS, p50_us=100.0)]
    assert verdicts(rows, [FASTER])[0].value is None


def test_a_verdict_is_a_good_row_that_names_the_rival() -> None:
    rows = [row(OURS, p50_us=10.0), row(THEIRS, p50_us=100.0)]
    line = verdict_row(verdicts(rows, [FASTER])[0])
    assert problems_of(line) == []
    assert (line["against"], line["target"], line["ratio"]) == ("redis 1.0", "at most 0.125", 0.1)


def test_each_target_asks_for_one_thing_of_a_known_subject() -> None:
    rivals = {"dynamo", "mooncake", "nixl", "redis", "limit"}
    for target in TARGETS:
        assert target.ours.subject == "moonpool"
        assert target.at_most is None or target.at_least is None
        assert target.theirs is None or target.theirs.subject in rivals


def test_the_table_has_a_line_a_target_and_says_what_is_missing() -> None:
    rows = [row(OURS, p50_us=10.0, ops_per_s=1e6), row(THEIRS, p50_us=100.0)]
    lines = table(verdicts(rows, [FASTER, MORE])).splitlines()
    assert len(lines) == 4
    assert [cell.strip() for cell in lines[2].split("|")[3:]][:3] == ["10", "100", "redis 1.0"]
    assert lines[2].endswith("| yes     |")
    assert lines[3].endswith("| ?       |")


def test_numbers_are_short() -> None:
    assert [number(v) for v in (None, 0.12345, 12.345, 1234567.8)] == [
        "?",
        "0.123",
        "12.3",
        "1,234,568",
    ]
