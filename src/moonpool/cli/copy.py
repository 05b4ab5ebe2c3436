"""`moonpool copy`: have copies of objects made on a node, as a task of the master."""

from __future__ import annotations

import argparse

from moonpool.cli.client import open_pool
from moonpool.cli.output import Output
from moonpool.cli.tasks import add_task_options, follow, named_keys
from moonpool.core.units import parse_duration

EXAMPLES = (
    "moonpool copy greeting --to node1               # one copy more of it from then on",
    "moonpool copy --prefix hot/ --to node1 --json   # of all these",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", metavar="NODE", required=True, help="where the copies come")
    add_task_options(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    with open_pool(args) as pool:
        keys = named_keys(args, pool)
        task = pool.copy(keys, args.to, deadline_s=parse_duration(args.deadline))
        return follow(task, args, output)
