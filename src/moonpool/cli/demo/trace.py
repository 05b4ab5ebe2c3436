"""`moonpool demo --trace`: an hour of real chat traffic through a pool, every byte checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK
from moonpool.cli.replay import plot
from moonpool.cli.replay.command import figures_table, title_of
from moonpool.cli.replay.session import Plan
from moonpool.cli.replay.session import run as run_plan
from moonpool.core.errors import MissingExtra
from moonpool.core.units import counted
from moonpool.planner import traces

NODES = 2


def run(folder: Path, output: Output) -> int:
    """The replay, its picture in `folder`, its figures. An exit status."""
    picture: Path | None = folder / "replay.png"
    try:
        plot.require_matplotlib()
    except MissingExtra as error:
        output.note(f"no picture: {error}")
        picture = None
    trace = traces.load("conversation")
    summary = trace.summary
    output.note(
        f"A master and {NODES} nodes come up; {summary.requests:,} requests of one hour of chat"
        f" ({summary.input_tokens:,} prompt tokens) go through them, every byte checked."
    )
    report = run_plan(Plan(trace, nodes=NODES))
    if picture is not None:
        plot.draw(report.windows, title_of(report.record), picture)
        output.text(f"picture: {picture}")
    output.text(figures_table(report.record))
    output.result(report.record, sentence(report.record))
    return EXIT_FAILED if report.record["errors"] else EXIT_OK


def sentence(record: dict[str, Any]) -> str:
    """What was shown, with the numbers of this run."""
    moved = (record["bytes_read"] + record["bytes_written"]) / 1e9
    errors = sum(record["errors"].values())
    return (
        f"{record['requests']:,} chat requests went through a pool of"
        f" {counted(record['nodes'], 'node')} in {record['seconds']:.0f} s:"
        f" {record['hit_tokens']:,} of {record['input_tokens']:,} prompt"
        f" tokens ({record['token_hit_ratio']:.1%}) need not be computed again, because their"
        f" {record['prefix_hit_blocks']:,} blocks were read back from shared memory; of the"
        f" {moved:.1f} GB moved, every byte that was read was checked,"
        f" {'with no error' if not errors else f'with {errors:,} errors'}."
    )
