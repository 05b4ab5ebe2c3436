"""`moonpool explain`: where a key lies, or why it is a miss; how far a request's keys reach."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from moonpool.cli.client import add_client_options
from moonpool.cli.options import load_settings
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK
from moonpool.cli.tables import table_text
from moonpool.core.errors import BadInput
from moonpool.core.sections import ClientConfig

EXAMPLES = (
    "moonpool explain greeting          # who holds it, or what became of it",
    "moonpool explain greeting --json   # with its events",
    "moonpool explain b0 b1 b2          # a request's blocks in order: where its hits end, and why",
    "moonpool explain - < keys.txt      # the same, one key a line",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "keys",
        metavar="KEY",
        nargs="+",
        help="the key of an object; several: those of one request; - reads them from stdin",
    )
    add_client_options(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    keys = _keys(args.keys)
    story = asyncio.run(_ask(args, keys))
    if len(keys) > 1:
        output.result(story, str(story["because"]))
        return EXIT_OK if story["readable"] else EXIT_FAILED
    events = [(one["at"], one["kind"], one["node"], one["size"]) for one in story["events"]]
    text = f"{story['key']}: {story['because']}"
    if events:
        text += "\n\n" + table_text(("at", "event", "node", "bytes"), events)
    output.result(story, text)
    return EXIT_OK if story["readable"] else EXIT_FAILED


def _keys(words: list[str]) -> list[str]:
    if words == ["-"]:
        words = sys.stdin.read().split()
    if not words:
        raise BadInput("no key came on stdin; write one a line")
    return words


async def _ask(args: argparse.Namespace, keys: list[str]) -> dict[str, Any]:
    from moonpool.dashboard.story import explain_key, explain_request
    from moonpool.pool.aio import connect_with

    async with await connect_with(load_settings(args, ClientConfig).value) as pool:
        if len(keys) > 1:
            return await explain_request(pool, [key.encode() for key in keys])
        return await explain_key(pool, keys[0].encode())
