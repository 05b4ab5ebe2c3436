"""Rows of a comparison: what they must hold, and medians over rounds."""

from bench.rows import Row, merged, problems_of

ROW: Row = {"bench": "store", "case": "get", "subject": "redis", "version": "8", "rounds": 1}


def test_a_good_row_has_no_problems() -> None:
    assert problems_of(ROW | {"p50_us": 1.5, "ok": True}) == []


def test_each_problem_of_a_row_is_named() -> None:
    bad: Row = {**ROW, "subject": "memcached", "rounds": "5", "ok": 1, "p50_us": -1.0}
    del bad["version"]
    assert [problem.split()[0] for problem in problems_of(bad)] == [
        "version",
        "subject",
        "rounds",
        "ok",
        "p50_us",
    ]


def test_rounds_of_one_case_become_one_row_of_medians() -> None:
    rounds = [ROW | {"p50_us": value, "ok": True} for value in (9.0, 1.0, 2.0)]
    other = ROW | {"case": "set", "p50_us": 7.0}
    assert merged([rounds[0], other, *rounds[1:]]) == [
        ROW | {"rounds": 3, "p50_us": 2.0, "ok": True},
        other,
    ]


def test_one_wrong_or_unchecked_round_makes_the_row_not_ok() -> None:
    assert merged([ROW | {"ok": True}, ROW | {"ok": False}])[0]["ok"] is False
    assert merged([ROW | {"ok": True}, ROW])[0]["ok"] is False


def test_texts_and_same_numbers_stay_as_they_are() -> None:
    assert merged([ROW | {"objects": 123_456}] * 2)[0]["objects"] == 123_456
