"""What rows of the sparse bench reach of what was wanted, as a table for docs/sparse.md.

    moonpool bench sparse --json --tokens 131072 > rows.jsonl
    python -m bench.sparse_targets rows.jsonl

Rows of several runs may be given, each of other lengths; those of the longest prefix are judged.
Steady steps are judged over those made up to the published miss curve and over the recorded ones.
A gain stands with what a lone request pays for it: its step over the same gather from private
memory, without a buffer and with one of twice top_k rows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.report import markdown, number
from bench.sparse_charts import Point, points

HEAD: Final = ("transport", "row", "figure", "value", "wanted", "reached")
FIRST_STEP: Final = {
    ("shm", 656): 20.0,
    ("shm", 1152): 15.0,
    ("tcp", 656): 25.0,
    ("tcp", 1152): 20.0,
}
FETCHED: Final = 5.0
OF_LIMIT: Final = 0.8
STEADY: Final = 1.3
# What goes beyond the paper: each with what it costs where it does not help.
BEYOND: Final = {
    "hint": ("hint_gain", "hint_gain_in_line"),
    "keys": ("ahead_gain",),
    "union": ("union_gain", "batch1_step_ratio"),
}


class Judged(NamedTuple):
    """One figure: at least or at most what is wanted, or only shown."""

    transport: str
    row_bytes: int
    figure: str
    value: float
    least: float | None = None
    most: float | None = None

    @property
    def reached(self) -> bool | None:
        if self.least is not None:
            return self.value >= self.least
        return None if self.most is None else self.value <= self.most


def judge(rows: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """Figures of the longest prefix, in the order of the bench."""
    found = points(rows)
    longest = max((point.tokens for point in found), default=0)
    answer: list[Judged] = []
    for point in found:
        if point.tokens == longest:
            answer += _of(point)
    return answer


def table(judged: Sequence[Judged]) -> str:
    return markdown(HEAD, [_cells(one) for one in judged])


def _of(point: Point) -> list[Judged]:
    row, where = point.row, (point.transport, point.row_bytes)
    if point.kind == "resident":
        return [
            Judged(*where, "first_step_ratio", row["first_step_ratio"], FIRST_STEP.get(where)),
            Judged(*where, "full_of_limit", row["full_of_limit"], OF_LIMIT),
            Judged(*where, "batch1_step_ratio", row["batch1_step_ratio"]),
        ]
    if point.kind == "fetched":
        name = "first_step_ratio, keys fetched"
        return [Judged(*where, name, row["first_step_ratio"], FETCHED)]
    if point.kind == "pipelined":
        name = "first_step_ratio, keys a layer ahead"
        return [Judged(*where, name, row["first_step_ratio"], FETCHED)]
    if point.kind == "threads":
        names = ("first_step_ratio", "first_step_ratio_fetched")
        wants = (FIRST_STEP.get(where), FETCHED)
        return [
            Judged(*where, f"{name}, {row['threads']} threads each", row[name], want)
            for name, want in zip(names, wants, strict=True)
        ]
    if point.kind in BEYOND:
        own = point.of or point.kind
        return [Judged(*where, f"{name}, {own}", row[name]) for name in BEYOND[point.kind]]
    if point.kind in ("steady", "recorded") and row["buffer_rows"] == 2 * row["top_k"]:
        steps = f" of {row['trace']}" if point.kind == "recorded" else ""
        name = f"steady_ratio, {row['buffer_rows']} rows{steps}"
        return [Judged(*where, name, row["steady_ratio"], most=STEADY)]
    return []


def _cells(one: Judged) -> list[str]:
    wanted = "-"
    if one.least is not None:
        wanted = f"at least {one.least:g}"
    elif one.most is not None:
        wanted = f"at most {one.most:g}"
    words = {True: "yes", False: "**no**", None: "-"}
    figures = [number(one.value), wanted, words[one.reached]]
    return [one.transport, str(one.row_bytes), one.figure, *figures]


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.sparse_targets")
    parser.add_argument("rows", type=Path, nargs="+")
    paths = parser.parse_args().rows
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    print(table(judge([json.loads(line) for line in lines if line.startswith("{")])))


if __name__ == "__main__":
    main()
