"""Tables for people: the same look in every command."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Final

WIDTH: Final = 160  # columns at most; a narrow terminal wraps lines better than cells


def table_text(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> str:
    """`rows` as text under `columns`; numbers stand on the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        show_header=any(columns),
    )
    body = [list(row) for row in rows]
    for index, name in enumerate(columns):
        numeric = bool(body) and all(isinstance(row[index], int | float) for row in body)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        table.add_row(*(Text(_cell(value)) for value in row))
    text = io.StringIO()
    Console(file=text, width=WIDTH, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n")


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
