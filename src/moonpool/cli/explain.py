"""`moonpool explain`: where a key lies, or why it is a miss."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from moonpool.cli.client import add_client_options
from moonpool.cli.options import load_settings
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK
from moonpool.cli.tables import table_text
from moonpool.core.sections import ClientConfig

EXAMPLES = (
    "moonpool explain greeting          # who holds it, or what became of it",
    "moonpool explain greeting --json   # with its events",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="the key of an object")
    add_client_options(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    story = asyncio.run(_ask(args))
    events = [(one["at"], one["kind"], one["node"], one["size"]) for one in story["events"]]
    text = f"{story['key']}: {story['because']}"
    if events:
        text += "\n\n" + table_text(("at", "event", "node", "bytes"), events)
    output.result(story, text)
    return EXIT_OK if story["readable"] else EXIT_FAILED


async def _ask(args: argparse.Namespace) -> dict[str, Any]:
    from moonpool.dashboard.story import explain_key
    from moonpool.pool.aio import connect

    config = load_settings(args, ClientConfig).value
    timeout_s = config.timeout_ms / 1000
    async with await connect(config.master, token=config.token, timeout_s=timeout_s) as pool:
        return await explain_key(pool, args.key.encode())
