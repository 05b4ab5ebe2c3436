"""`moonpool task`: the copies, moves and clearings under way, or one of them."""

from __future__ import annotations

import argparse

from moonpool.cli.client import add_client_options, open_pool
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_OK
from moonpool.cli.tasks import record_of, show, summary
from moonpool.core.errors import BadInput

EXAMPLES = (
    "moonpool task                # all of them",
    "moonpool task 17-4           # one, and what became of its keys",
    "moonpool task 17-4 --cancel  # no more of it is begun",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", metavar="ID")
    parser.add_argument("--cancel", action="store_true", help="end it; what was done stays")
    add_client_options(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    if args.cancel and not args.id:
        raise BadInput("which task? give its id")
    with open_pool(args) as pool:
        if not args.id:
            for info in pool.tasks():
                output.result(record_of(info), summary(info))
            return EXIT_OK
        task = pool.task(args.id)
        return show(task, task.cancel() if args.cancel else task.info(), output)
