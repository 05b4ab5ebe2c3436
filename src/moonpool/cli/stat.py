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
    """Plain values in one table, then one for each family of records (its segments)."""
    families = {name: records for name, value in values.items() if (records := _records(value))}
    plain = {name: value for name, value in values.items() if name not in families}
    yield table_text(("", ""), [(name, _cell(name, value)) for name, value in plain.items()])
    for name, records in families.items():
        columns = list(records[0])
        rows = [[_cell(column, row.get(column, "")) for column in columns] for row in records]
        heads = [column.removesuffix("_bytes") for column in columns]
        yield table_text(heads, rows, title=name)


def _records(value: object) -> list[dict[str, object]]:
    """The records of a value such as {"0": {...}, "1": {...}}, or none."""
    if not isinstance(value, dict):
        return []
    records = [{"": key, **row} for key, row in value.items() if isinstance(row, dict)]
    for row in records:
        row.pop("usage", None)  # the agent's own counters are for --json
    return records


def _cell(name: str, value: object) -> object:
    if name.endswith("bytes") and isinstance(value, int):
        return format_bytes(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value.hex() if isinstance(value, bytes) else value
