"""Bench rows: what they must hold, and medians of the same case over rounds.

One JSON object a row, as in moonpool/bench. Standard library alone, for rivals run in a
virtual environment of their own.
"""

import statistics
from collections.abc import Iterable
from typing import Final

Row = dict[str, object]
Name = tuple[str, str, str]  # subject, bench, case

NAMES: Final = ("bench", "case", "subject", "version")
SUBJECTS: Final = ("moonpool", "mooncake", "nixl", "redis", "dynamo", "limit", "machine")


def problems_of(row: Row) -> list[str]:
    """What a row lacks or holds wrongly; empty for a good one."""
    found = [f"{name} is no text" for name in NAMES if not isinstance(row.get(name), str)]
    if row.get("subject") not in SUBJECTS:
        found.append(f"subject {row.get('subject')!r} is unknown; know {', '.join(SUBJECTS)}")
    rounds = row.get("rounds")
    if not isinstance(rounds, int) or rounds < 0:
        found.append(f"rounds {rounds!r} is no count")
    if "ok" in row and not isinstance(row["ok"], bool):
        found.append(f"ok {row['ok']!r} is neither true nor false")
    negative = [key for key, value in row.items() if _is_number(value) and _number(value) < 0]
    return found + [f"{key} is negative" for key in negative]


def name_of(row: Row) -> Name:
    """Who did what: rows of one name are rounds of one measurement."""
    return str(row["subject"]), str(row["bench"]), str(row["case"])


def merged(rows: Iterable[Row]) -> list[Row]:
    """One row a name, in order of first appearance: medians of the figures, rounds added up.

    `ok` stays true only where each round has it; a figure counts where a round has it.
    """
    groups: dict[Name, list[Row]] = {}
    for row in rows:
        groups.setdefault(name_of(row), []).append(row)
    return [_median_row(group) for group in groups.values()]


def _median_row(group: list[Row]) -> Row:
    out: Row = {}
    for key in dict.fromkeys(key for row in group for key in row):
        values = [row[key] for row in group if key in row]
        if key == "rounds":
            out[key] = sum(int(_number(value)) for value in values)
        elif key == "ok":
            out[key] = len(values) == len(group) and all(values)
        elif all(_is_number(value) for value in values) and len(set(values)) > 1:
            out[key] = short(statistics.median(_number(value) for value in values))
        else:
            out[key] = values[0]
    return out


def short(value: float) -> float:
    """Four significant digits: no more was measured."""
    return float(f"{value:.4g}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: object) -> float:
    assert isinstance(value, int | float), value
    return float(value)
