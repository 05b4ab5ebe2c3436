"""The tables of the docs name what the code has, all of it and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile

import moonpool
from moonpool.core import errors
from moonpool.core.sections import SCHEMA
from moonpool.pool.results import MissReason, PutStatus
from tests.tree import ROOT

API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
NAME = re.compile(r"`([\w.]+)`")


def column(text: str, head: str, number: int = 0) -> list[str]:
    """The names in one column of the table whose head row begins so."""
    lines = text[text.index(f"\n| {head} |") + 1 :].splitlines()
    rows = list(takewhile(lambda line: line.startswith("|"), lines))[2:]
    return [name for row in rows for name in NAME.findall(row.split("|")[1 + number])]


def sources() -> Iterable[str]:
    for folder, pattern in (("src/moonpool", "*.py"), ("native", "*.hpp")):
        for path in (ROOT / folder).rglob(pattern):
            yield path.read_text(encoding="utf-8")


def test_every_status_of_a_put() -> None:
    assert sorted(column(API, "status")) == sorted(PutStatus)


def test_every_reason_of_a_miss() -> None:
    assert sorted(column(API, "reason")) == sorted(MissReason)


def test_every_counter_of_stat() -> None:
    with moonpool.Pool.local(memory="8MiB") as pool:
        values = pool.stat()
    text = OPERATIONS[OPERATIONS.index("## What `stat` counts") :]
    assert sorted(column(text, "name")) == sorted(values)


def test_errors_that_the_page_names_exist() -> None:
    named = [name for number in (0, 2) for name in column(API, "class", number)]
    assert [name for name in named if not hasattr(errors, name) and name[0].isupper()] == [
        "ConnectionError",
        "TimeoutError",
    ]


def test_bounds_have_the_names_that_the_page_gives_them() -> None:
    code = "\n".join(sources())
    settings = {item.path for section in SCHEMA.sections.values() for item in section.settings()}
    unknown = [
        name
        for name in column(OPERATIONS, "bound", 2)
        if (name not in settings if "." in name else not re.search(rf"\b{name}\b", code))
    ]
    assert unknown == []
