"""Which commands there are. Adding one is a line here and a file of the same name beside it.

The file defines what `CommandModule` lists and imports nothing heavy at its top: `moonpool --help`
imports none of them, `moonpool NAME --help` only its own.
"""

import argparse
import importlib
from typing import Protocol, cast

from moonpool.cli.output import Output

COMMANDS: dict[str, str] = {
    "up": "bring up a master and nodes on this machine",
    "master": "run the process that decides placement",
    "node": "lend this machine's memory to a pool",
    "engine": "serve a model over HTTP as OpenAI does, its prompts shared through a pool",
    "router": "send each request to the worker that holds most of its prefix",
    "route": "ask a router where a prompt would go, and why",
    "put": "store a file as an object",
    "get": "read an object",
    "exists": "ask whether keys are stored",
    "rm": "remove objects",
    "ls": "list objects",
    "drain": "move everything away from a node",
    "copy": "have copies of objects made on a node",
    "move": "have objects taken from one node to another",
    "clear": "have the copies on a node given up, never the last one",
    "task": "show the copies, moves and clearings under way, or cancel one",
    "stat": "show what the master counts",
    "top": "watch a pool live in the terminal",
    "explain": "say where a key lies, or why it is a miss",
    "admin": "serve a pool's web page, metrics and HTTP API",
    "replay": "replay a trace through a pool of processes, checking every byte",
    "bench": "measure how fast this is here",
    "demo": "two engines share what they computed of a long document, measured and drawn",
    "doctor": "say what this machine can do, and what to do about what is missing",
    "config": "show every setting, its value and where it came from",
}


class CommandModule(Protocol):
    """What the file of a command defines."""

    EXAMPLES: tuple[str, ...]
    """Complete command lines, each with what it does after two spaces and '#'."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's options; --json, --config and --help are there already."""
        ...

    def run(self, args: argparse.Namespace, output: Output) -> int:
        """Do it. Exit status 0 ok, 1 failed; raise MoonpoolError for what went wrong."""
        ...


def load_command(name: str) -> CommandModule:
    """The module of a command in COMMANDS."""
    return cast(CommandModule, importlib.import_module(f"moonpool.cli.{name}"))
