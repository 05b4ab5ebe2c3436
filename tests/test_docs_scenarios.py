"""docs/scenarios.md names a test for each scenario, and each of them is there."""

from __future__ import annotations

import re

import pytest

from tests.tree import ROOT

PAGE = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (R\d\d) \| (.+?) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
# As numbered by this project; the gaps were never used.
NUMBERS = (
    "01 02 04 05 07 08 10 11 13 14 16 17 19 20 22 23 25 26 28 29 31 32 34 35 37 38 40 41 43 44 46"
    " 47 49 50 52 53 55 56 58 59 61 62 64 65 67 68 70 71 73 74 76 77 79 80 82 83 85 86 88 89 91 92"
).split()


def named_in(row: re.Match[str]) -> list[tuple[str, str]]:
    return TEST.findall(row[3])


def test_every_scenario_has_a_row_or_a_reason() -> None:
    rows = [row[1] for row in ROW.finditer(PAGE)]
    reasons = re.findall(r"^- (R\d\d) ", PAGE[PAGE.index("## Not ours") :], re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert sorted(rows + reasons) == [f"R{number}" for number in NUMBERS]


@pytest.mark.parametrize("row", list(ROW.finditer(PAGE)), ids=lambda row: row[1])
def test_each_test_that_is_named_is_there(row: re.Match[str]) -> None:
    assert named_in(row) and row[3].count("`") == 2 * len(named_in(row)), row[3]
    for name, test in named_in(row):
        source = (ROOT / "tests" / name).read_text(encoding="utf-8")
        start = "async def|def" if test.startswith("test_") else "class"
        defined = re.search(rf"^(?:{start}) {test}\b|^{test} = ", source, re.MULTILINE)
        assert defined, f"{name} has no {test}"
