"""`moonpool bench`: how fast this is here, as one JSON object a row or as a table."""

from __future__ import annotations

import argparse

from moonpool.bench import BENCHES, Row, Settings, rows_of
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK
from moonpool.cli.signals import sigterm_interrupts
from moonpool.cli.tables import table_text

EXAMPLES = (
    "moonpool bench store              # gets, puts and views of the whole pool",
    "moonpool bench all --json         # every bench, one JSON object a row",
    "moonpool bench transfer --full    # the whole matrix",
    "moonpool bench router --trace conversation --workers 8 --blocks 5859  # hits and balance",
    "moonpool bench sparse-model --from rows.jsonl  # simulated CXL and RDMA beside our own rows",
)
FIGURES = ("p50_us", "p99_us", "gb_per_s", "ops_per_s", "cpu_s_per_gb", "bytes_per_item")
_SHOWN = ("bench", "case", "subject", "version", "rounds", *FIGURES)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="?", default="all", help=f"{', '.join(BENCHES)}, all (default)"
    )
    parser.add_argument("--full", action="store_true", help="the whole matrix, takes long")
    parser.add_argument("--trace", default="", help="router: only this trace, a name or a file")
    parser.add_argument("--workers", type=int, default=8, help="router: workers of that trace (8)")
    parser.add_argument("--blocks", type=int, default=5859, help="router: blocks of each (5859)")
    parser.add_argument("--tokens", type=int, default=0, help="sparse: only this length")
    parser.add_argument(
        "--from",
        dest="measured",
        default="",
        help="sparse-model: a file of rows of sparse",
    )
    parser.add_argument("--layers", type=int, default=0, help="sparse: at most so many (61)")
    parser.add_argument("--rounds", type=int, default=5, help="medians are over so many (5)")


def run(args: argparse.Namespace, output: Output) -> int:
    rows: list[Row] = []
    with sigterm_interrupts():  # its processes and their memory end with it
        settings = Settings(
            max(1, args.rounds),
            args.full,
            args.trace,
            args.workers,
            args.blocks,
            args.tokens,
            args.layers,
            args.measured,
        )
        for row in rows_of(args.what, settings):
            rows.append(row)
            if output.as_json:
                output.result(row, "")
            else:
                output.note(f"{row['bench']}: {row['case']}")
    figures = [name for name in FIGURES if any(name in row for row in rows)]
    cells = [_cells(row, figures) for row in rows]
    output.text(table_text(("case", *figures, "more"), cells))
    return EXIT_FAILED if any(row.get("ok") is False for row in rows) else EXIT_OK


def _cells(row: Row, figures: list[str]) -> list[str]:
    shown = [_figure(row.get(name)) for name in figures]
    more = ", ".join(f"{key} {_figure(row[key])}" for key in row if key not in _SHOWN)
    return [f"{row['bench']}: {row['case']}", *shown, more]


def _figure(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
