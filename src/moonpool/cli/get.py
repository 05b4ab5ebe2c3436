"""`moonpool get`: an object's bytes on stdout or in a file."""

from __future__ import annotations

import argparse
import base64
import os
import sys
from pathlib import Path

from moonpool.cli.client import add_client_options, open_pool
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK
from moonpool.core.errors import BadInput
from moonpool.core.units import format_bytes
from moonpool.pool.results import Miss

EXAMPLES = (
    "moonpool get greeting                # the bytes on stdout",
    "moonpool get weights -o w.bin        # into a file",
    "moonpool get greeting --json         # base64 in one JSON object",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key")
    parser.add_argument("-o", "--output", metavar="FILE", help="file instead of stdout")
    add_client_options(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    with open_pool(args) as pool:
        (answer,) = pool.get_many([args.key])
    if isinstance(answer, Miss):
        record = {"key": args.key, "miss": answer.reason.value}
        if output.as_json:
            output.result(record, "")
        output.note(f"{args.key}: miss ({answer.reason.value}) {answer.text}".rstrip())
        return EXIT_FAILED
    data = answer.data
    assert data is not None, "get_many answers a hit with its bytes"
    hit = {"key": args.key, "bytes": len(data), "node": answer.node}
    if args.output is not None:
        _write(Path(args.output), data)
        output.result(hit | {"file": args.output}, f"{args.output}: {format_bytes(len(data))}")
    elif output.as_json:
        output.result(hit | {"base64": base64.b64encode(data).decode()}, "")
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    return EXIT_OK


def _write(path: Path, data: bytes) -> None:
    """All or nothing: a reader of `path` never sees half of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BadInput(f"cannot write {path}: {error.strerror}") from None
