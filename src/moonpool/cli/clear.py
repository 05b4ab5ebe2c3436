"""`moonpool clear`: have the copies on a node given up, never the last one, as a task."""

from __future__ import annotations

import argparse

from moonpool.cli.client import open_pool
from moonpool.cli.output import Output
from moonpool.cli.tasks import add_task_options, follow, named_keys
from moonpool.core.units import parse_duration

EXAMPLES = (
    "moonpool clear greeting --source node1        # one copy less of it from then on",
    "moonpool clear --prefix cold/ --source node1  # of all these that have another",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", metavar="NODE", required=True, help="whose copies go")
    add_task_options(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    with open_pool(args) as pool:
        keys = named_keys(args, pool)
        task = pool.clear(keys, args.source, deadline_s=parse_duration(args.deadline))
        return follow(task, args, output)
