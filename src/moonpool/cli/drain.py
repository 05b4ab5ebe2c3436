"""`moonpool drain`: move everything away from a node before it is taken down."""

from __future__ import annotations

import argparse
import time

from moonpool.cli.client import add_client_options, open_pool
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK
from moonpool.core.units import parse_duration

EXAMPLES = (
    "moonpool drain node1 --wait 5m   # until it is empty, at most five minutes",
    "moonpool drain node1 --stop      # it takes part again",
)
LOOK_S = 0.2


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="its name")
    parser.add_argument("--stop", action="store_true", help="let the node take part again")
    parser.add_argument("--wait", metavar="TIME", help="wait until it is empty, at most so long")
    add_client_options(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    until = time.monotonic() + (parse_duration(args.wait) if args.wait else 0.0)
    with open_pool(args) as pool:
        left = pool.drain(args.node, stop=args.stop)
        while left and not args.stop and time.monotonic() < until:
            time.sleep(LOOK_S)
            left = pool.drain(args.node)
    state = "takes part again" if args.stop else "drains"
    record = {"node": args.node, "draining": not args.stop, "copies_left": left}
    output.result(record, f"{args.node} {state}; copies there: {left:,}")
    return EXIT_FAILED if args.wait and left and not args.stop else EXIT_OK
