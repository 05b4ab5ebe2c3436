"""`moonpool move`: have objects taken from one node to another, as a task of the master."""

from __future__ import annotations

import argparse

from moonpool.cli.client import open_pool
from moonpool.cli.output import Output
from moonpool.cli.tasks import add_task_options, follow, named_keys
from moonpool.core.units import parse_duration

EXAMPLES = (
    "moonpool move greeting --to node1                     # from wherever it is",
    "moonpool move --prefix hot/ --source node0 --to node1   # readable throughout",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", metavar="NODE", required=True, help="where the copies come")
    parser.add_argument("--source", metavar="NODE", default="", help="whose copies go")
    add_task_options(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    with open_pool(args) as pool:
        keys = named_keys(args, pool)
        deadline_s = parse_duration(args.deadline)
        task = pool.move(keys, args.to, source=args.source, deadline_s=deadline_s)
        return follow(task, args, output)
