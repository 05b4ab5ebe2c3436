"""`moonpool stat`: what the master counts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from moonpool.cli.client import add_client_options, open_pool
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_OK
from moonpool.cli.tables import table_text
from moonpool.core.units import format_bytes

EXAMPLES = (
    "moonpool stat            # tables",
    "moonpool stat --json     # everything in one JSON object",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_client_options(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    with open_pool(args) as pool:
        values = pool.stat()
    if output.as_json:
        output.result(values, "")
    else:
        output.text("\n\n".join(_tables(values)))
    return EXIT_OK


def _tables(values: Mapping[str, object]) -> Iterator[str]:
    """Plain values in one table, then one for each list of records."""
    plain = {name: value for name, value in values.items() if not isinstance(value, list)}
    yield table_text(("", ""), _lines("", plain))
    for name, records in values.items():
        if isinstance(records, list) and records and isinstance(records[0], dict):
            columns = list(records[0])
            rows = [[_cell(column, row.get(column, "")) for column in columns] for row in records]
            yield table_text(columns, rows, title=name)


def _lines(prefix: str, values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _lines(f"{prefix}{name} ", value)
        else:
            yield f"{prefix}{name}", _cell(name, value)


def _cell(name: str, value: object) -> object:
    if name.endswith("bytes") and isinstance(value, int):
        return format_bytes(value)
    return value.hex() if isinstance(value, bytes) else value
