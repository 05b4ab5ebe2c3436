"""`moonpool ls`: the committed objects of a pool."""

from __future__ import annotations

import argparse
from itertools import islice

from moonpool.cli.client import add_client_options, key_text, open_pool
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_OK
from moonpool.cli.tables import table_text
from moonpool.core.units import format_bytes

EXAMPLES = (
    "moonpool ls                        # the first 1,000 objects",
    "moonpool ls replay/ --limit 0      # all whose key starts so",
)
LIMIT = 1000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prefix", nargs="?", default="", help="only keys that start with it")
    parser.add_argument("--limit", type=int, default=LIMIT, help="objects at most, 0: all")
    add_client_options(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    with open_pool(args) as pool:
        found = islice(pool.list(args.prefix), args.limit or None)
        if output.as_json:
            for item in found:
                record = {"key": key_text(item.key), "bytes": item.size, "replicas": item.replicas}
                output.result(record, "")
            return EXIT_OK
        rows = [(key_text(item.key), format_bytes(item.size), item.replicas) for item in found]
    output.text(table_text(("key", "size", "replicas"), rows))
    return EXIT_OK
