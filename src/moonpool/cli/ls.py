"""`moonpool ls`: the committed objects of a pool."""

from __future__ import annotations

import argparse
from itertools import islice
from typing import Any

from moonpool.cli.client import add_client_options, key_text, open_pool
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_OK
from moonpool.cli.tables import table_text
from moonpool.core.units import format_bytes

EXAMPLES = (
    "moonpool ls                        # the first 1,000 objects",
    "moonpool ls replay/ --limit 0      # all whose key starts so",
    "moonpool ls --tenants              # what each tenant has, or what yours has",
)
LIMIT = 1000
_BYTES = ("committed_bytes", "quota_bytes", "borrowed_bytes")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prefix", nargs="?", default="", help="only keys that start with it")
    parser.add_argument("--limit", type=int, default=LIMIT, help="objects at most, 0: all")
    parser.add_argument("--tenants", action="store_true", help="what they have, not the objects")
    add_client_options(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    with open_pool(args) as pool:
        if args.tenants:
            _tenants(pool.stat()["tenants"], output)
            return EXIT_OK
        found = islice(pool.list(args.prefix), args.limit or None)
        if output.as_json:
            for item in found:
                record = {"key": key_text(item.key), "bytes": item.size, "replicas": item.replicas}
                output.result(record, "")
            return EXIT_OK
        rows = [(key_text(item.key), format_bytes(item.size), item.replicas) for item in found]
    output.text(table_text(("key", "size", "replicas"), rows))
    return EXIT_OK


def _tenants(tenants: Any, output: Output) -> None:
    if output.as_json:
        for name, one in tenants.items():
            output.result({"tenant": name, **one}, "")
        return
    rows = [
        (name, *(format_bytes(one[column]) for column in _BYTES), one["objects"], one["weight"])
        for name, one in tenants.items()
    ]
    heads = ("tenant", "has", "quota", "borrowed", "objects", "weight")
    output.text(table_text(heads, rows))
