"""`moonpool node`: lend this machine's memory to a pool, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse

from moonpool.cli.options import add_settings, load_settings
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_OK
from moonpool.core.sections import NodeConfig
from moonpool.core.units import format_bytes

EXAMPLES = (
    "moonpool node --memory 8GiB                                  # for a master on this machine",
    "moonpool node --master 10.0.0.1:7400 --host 10.0.0.2 --memory 64GiB",
    "moonpool node --name a --memory 8GiB                         # re-adopts its segment 'a'",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, NodeConfig)


def run(args: argparse.Namespace, output: Output) -> int:
    from moonpool.pool.node import NodeServer, run_node

    config = load_settings(args, NodeConfig).value

    def ready(node: NodeServer) -> None:
        record = {"ready": "node", "name": node.name, "tcp": node.tcp, "memory": config.memory}
        output.result(
            record,
            f"node {node.name} lends {format_bytes(config.memory)} to {config.master},"
            f" data on {node.tcp}",
        )

    run_node(config, ready)
    return EXIT_OK
