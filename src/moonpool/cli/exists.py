"""`moonpool exists`: which keys the pool holds; asking extends no life."""

from __future__ import annotations

import argparse

from moonpool.cli.client import add_client_options, open_pool
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK

EXAMPLES = (
    "moonpool exists greeting              # exit status 0 when it is there",
    "moonpool exists a b c --json          # one JSON object per key",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("keys", nargs="+", metavar="key")
    add_client_options(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    with open_pool(args) as pool:
        found = pool.exists(args.keys)
    for key, there in zip(args.keys, found, strict=True):
        output.result({"key": key, "exists": bool(there)}, f"{key}: {'yes' if there else 'no'}")
    return EXIT_OK if all(found) else EXIT_FAILED
