"""The options of `moonpool replay`, and what it prints."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK
from moonpool.cli.replay import plot
from moonpool.cli.replay.inject import parse_faults
from moonpool.cli.replay.session import Plan
from moonpool.cli.replay.session import run as run_plan
from moonpool.cli.tables import table_text
from moonpool.core.errors import BadInput
from moonpool.core.units import counted, format_bytes, parse_bytes
from moonpool.planner import traces
from moonpool.pool.eviction import POLICIES

EXAMPLES = (
    "moonpool replay conversation                      # room for everything, 3 GB",
    "moonpool replay synthetic --nodes 3 --plot s.png  # with a picture",
    "moonpool replay conversation --capacity-blocks 5859",
    "moonpool replay my.jsonl.gz --block-tokens 16 --rounding floor --limit 1000",
    "moonpool replay conversation --limit 2000 --inject corrupt:3 --inject kill-node:1000",
)
NODES_MAX = 64


def configure(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(traces.PACKAGED)
    parser.add_argument("trace", help=f"{names}, or a .jsonl, .jsonl.gz or .jsonl.xz file")
    parser.add_argument("--nodes", type=_nodes, default=1, help="node processes (default: 1)")
    parser.add_argument(
        "--capacity-blocks",
        type=_positive,
        metavar="C",
        help="blocks that each node keeps (default: room for everything)",
    )
    parser.add_argument(
        "--block-bytes", default="16KiB", metavar="SIZE", help="bytes of a block (default: 16KiB)"
    )
    parser.add_argument(
        "--block-tokens",
        type=_positive,
        default=traces.BLOCK_TOKENS_DEFAULT,
        metavar="N",
        help=f"tokens of a block of the trace (default: {traces.BLOCK_TOKENS_DEFAULT})",
    )
    parser.add_argument(
        "--rounding",
        choices=("ceil", "floor"),
        default="ceil",
        help="whether a partial last block has an id in the trace (ceil) or none (floor)",
    )
    parser.add_argument(
        "--policy", choices=tuple(POLICIES), default="lru", help="eviction (default: lru)"
    )
    parser.add_argument("--limit", type=_positive, metavar="N", help="only the first N requests")
    parser.add_argument(
        "--inject",
        action="append",
        default=[],
        metavar="FAULT",
        help="corrupt:N flips N stored bytes, kill-node:R kills a node before request R "
        "(from 0); may be repeated",
    )
    parser.add_argument("--seed", type=int, default=0, help="of contents and faults (default: 0)")
    parser.add_argument(
        "--plot", metavar="FILE", type=Path, help="draw hit ratio and throughput (needs [plot])"
    )


def run(args: argparse.Namespace, output: Output) -> int:
    if args.plot:
        plot.require_matplotlib()
    report = run_plan(plan_of(args))
    if args.plot:
        plot.draw(report.windows, title_of(report.record), args.plot)
        output.note(f"picture: {args.plot}")
    output.text(figures_table(report.record))
    if output.as_json:
        output.result(report.record, "")
    expected = report.record["corrupted_bytes"] or report.record["killed_nodes"]
    return EXIT_FAILED if report.record["errors"] and not expected else EXIT_OK


def plan_of(args: argparse.Namespace) -> Plan:
    """The plan the options describe. Raises BadInput."""
    trace = traces.load(args.trace, block_tokens=args.block_tokens, rounding=args.rounding)
    if args.limit is not None:
        trace = trace.head(args.limit)
    if not trace.requests:
        raise BadInput(f"{args.trace}: no requests in it")
    return Plan(
        trace=trace,
        nodes=args.nodes,
        capacity_blocks=args.capacity_blocks,
        block_bytes=parse_bytes(args.block_bytes),
        policy=args.policy,
        faults=parse_faults(args.inject, len(trace.requests)),
        seed=args.seed,
    )


def title_of(record: dict[str, Any]) -> str:
    return (
        f"{record['trace']}: {record['requests']:,} requests, {counted(record['nodes'], 'node')},"
        f" blocks of {format_bytes(record['block_bytes'])}"
    )


def figures_table(record: dict[str, Any]) -> str:
    """The figures for people."""
    errors = ", ".join(f"{count:,} {reason}" for reason, count in record["errors"].items())
    rows = [
        ("requests", f"{record['requests']:,}"),
        ("input tokens", f"{record['input_tokens']:,}"),
        ("hit tokens", f"{record['hit_tokens']:,}"),
        ("token hit ratio", f"{record['token_hit_ratio']:.5f}"),
        ("prefix hit blocks", f"{record['prefix_hit_blocks']:,}"),
        ("read and verified", format_bytes(record["bytes_read"])),
        ("written", format_bytes(record["bytes_written"])),
        ("throughput in pool calls", f"{record['gb_per_s']:.2f} GB/s"),
        ("pool time of a request", f"p50 {record['p50_us']:.0f} us, p99 {record['p99_us']:.0f} us"),
        ("time, CPU time", f"{record['seconds']:.1f} s, {record['cpu_s']:.1f} s"),
        ("errors", errors or "none"),
    ]
    return table_text(("", title_of(record)), rows)


def _nodes(text: str) -> int:
    if _positive(text) > NODES_MAX:
        raise argparse.ArgumentTypeError(f"at most {NODES_MAX} nodes on one machine, not {text}")
    return int(text)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, not {text!r}")
    return int(text)
