"""`moonpool rm`: objects become invisible at once; their memory returns when no reader holds it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from moonpool.cli.client import add_client_options, open_pool
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK
from moonpool.core.errors import BadInput
from moonpool.core.units import format_bytes, parse_bytes
from moonpool.pool.results import RemoveStatus

if TYPE_CHECKING:
    from moonpool.pool.pool import Pool

EXAMPLES = (
    "moonpool rm greeting now          # two objects",
    "moonpool rm --prefix replay/      # every object whose key starts so",
    "moonpool rm --contains tmp --min-size 1MiB --dry-run   # says what would go",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("keys", nargs="*", metavar="key")
    parser.add_argument("--prefix", help="remove every key that starts with it")
    parser.add_argument("--contains", default="", help="remove every key that has it inside")
    parser.add_argument("--suffix", default="", help="remove every key that ends with it")
    parser.add_argument("--min-size", metavar="SIZE", help="only objects of at least so many bytes")
    parser.add_argument("--max-size", metavar="SIZE", help="only objects of at most so many bytes")
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")
    add_client_options(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    sized = args.min_size is not None or args.max_size is not None
    conditions = bool(args.prefix or args.contains or args.suffix or sized)
    if bool(args.keys) == conditions:
        raise BadInput("rm takes keys or --prefix (or another condition), one of the two")
    with open_pool(args) as pool:
        if args.prefix and not (args.contains or args.suffix or sized or args.dry_run):
            count = pool.remove_prefix(args.prefix)
            output.result({"prefix": args.prefix, "removed": count}, f"{count:,} removed")
            return EXIT_OK
        if conditions:
            return _where(args, output, pool)
        results = pool.remove(args.keys)
    for key, status in zip(args.keys, results, strict=True):
        output.result({"key": key, "status": status.value}, f"{key}: {status.value}")
    gone = (RemoveStatus.REMOVED, RemoveStatus.PENDING)
    return EXIT_OK if all(status in gone for status in results) else EXIT_FAILED


def _where(args: argparse.Namespace, output: Output, pool: Pool) -> int:
    found = pool.remove_where(
        prefix=args.prefix or "",
        contains=args.contains,
        suffix=args.suffix,
        min_bytes=0 if args.min_size is None else parse_bytes(args.min_size),
        max_bytes=None if args.max_size is None else parse_bytes(args.max_size),
        dry_run=args.dry_run,
    )
    what = "would be removed" if args.dry_run else "removed"
    record = {"removed": found.objects, "bytes": found.size, "dry_run": args.dry_run}
    output.result(record, f"{found.objects:,} {what}, {format_bytes(found.size)}")
    return EXIT_OK
