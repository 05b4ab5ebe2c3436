"""`moonpool put`: a file becomes an object."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from moonpool.cli.client import add_client_options, open_pool
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK
from moonpool.core.errors import BadInput
from moonpool.core.units import format_bytes, parse_duration
from moonpool.pool.keep import Keep

EXAMPLES = (
    "moonpool put greeting hello.txt           # the file's content under the key 'greeting'",
    "moonpool put now - --ttl 1h               # from stdin, gone after an hour",
    "moonpool put weights w.bin --replicas 2   # on two nodes",
    "moonpool put session s.bin --pin soft --pin-ttl 10m --priority high",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key")
    parser.add_argument("file", help="path, or - for stdin")
    parser.add_argument("--replicas", type=int, default=1, help="copies on distinct nodes")
    parser.add_argument("--parent", help="key of the object this one continues")
    parser.add_argument("--ttl", metavar="TIME", help="time to live, as '90s' or '1h'")
    parser.add_argument("--pin", choices=("soft", "hard"), help="keep it from being evicted")
    parser.add_argument("--pin-ttl", metavar="TIME", help="end of a soft pin (default: 30m)")
    parser.add_argument(
        "--priority", choices=("low", "normal", "high"), default="normal", help="low goes first"
    )
    parser.add_argument(
        "--group", default="", metavar="NAME", help="read and evicted with others of this group"
    )
    parser.add_argument(
        "--min-replicas", type=int, help="copies that suffice now; the rest is repaired"
    )
    parser.add_argument("--replace", action="store_true", help="also when the key exists")
    add_client_options(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    ttl_s = None if args.ttl is None else parse_duration(args.ttl)
    pin_ttl_s = None if args.pin_ttl is None else parse_duration(args.pin_ttl)
    keep = Keep(args.pin, ttl_s=pin_ttl_s, priority=args.priority, group=args.group)
    data = _read(args.file)
    with open_pool(args) as pool:
        result = pool.put(
            args.key,
            data,
            replicas=args.replicas,
            parent=args.parent,
            min_replicas=args.min_replicas,
            pin=keep,
            ttl_s=ttl_s,
            replace=args.replace,
        )
    result.raise_for_status(args.key.encode())
    record = {
        "key": args.key,
        "status": result.status.value,
        "replicas": result.replicas,
        "bytes": len(data),
    }
    output.result(record, _text(record))
    return EXIT_OK if result.ok else EXIT_FAILED


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror}") from None


def _text(record: dict[str, object]) -> str:
    key, status = record["key"], record["status"]
    if status != "stored":
        return f"{key}: {status}, nothing was written"
    size = record["bytes"]
    assert isinstance(size, int)
    copies = record["replicas"]
    return f"{key}: stored, {format_bytes(size)}, {copies} {'copy' if copies == 1 else 'copies'}"
