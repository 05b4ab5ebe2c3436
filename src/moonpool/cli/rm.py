"""`moonpool rm`: objects become invisible at once; their memory returns when no reader holds it."""

from __future__ import annotations

import argparse

from moonpool.cli.client import add_client_options, open_pool
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK
from moonpool.core.errors import BadInput
from moonpool.pool.results import RemoveStatus

EXAMPLES = (
    "moonpool rm greeting now          # two objects",
    "moonpool rm --prefix replay/      # every object whose key starts so",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("keys", nargs="*", metavar="key")
    parser.add_argument("--prefix", help="remove every key that starts with it")
    add_client_options(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    if bool(args.keys) == bool(args.prefix):
        raise BadInput("rm takes keys or --prefix with a text, one of the two")
    with open_pool(args) as pool:
        if args.prefix:
            count = pool.remove_prefix(args.prefix)
            output.result({"prefix": args.prefix, "removed": count}, f"{count:,} removed")
            return EXIT_OK
        results = pool.remove(args.keys)
    for key, status in zip(args.keys, results, strict=True):
        output.result({"key": key, "status": status.value}, f"{key}: {status.value}")
    gone = (RemoveStatus.REMOVED, RemoveStatus.PENDING)
    return EXIT_OK if all(status in gone for status in results) else EXIT_FAILED
