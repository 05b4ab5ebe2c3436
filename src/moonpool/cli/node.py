"""`moonpool node`: lend this machine's memory to a pool, until SIGTERM or Ctrl-C; or tell a node
that runs here to lend more, or less."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from moonpool.cli.options import add_settings, load_settings
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK
from moonpool.core.errors import BadInput
from moonpool.core.sections import NodeConfig
from moonpool.core.units import format_bytes, parse_bytes, parse_duration

EXAMPLES = (
    "moonpool node --memory 8GiB                                  # for a master on this machine",
    "moonpool node --master 10.0.0.1:7400 --host 10.0.0.2 --memory 64GiB",
    "moonpool node --name a --memory 8GiB                         # re-adopts its segment 'a'",
    "moonpool node mount --name a --size 4GiB                     # the running node lends more",
    "moonpool node mounts --name a                                # its further segments",
    "moonpool node unmount --name a --segment 2 --wait 5m         # emptied, then given back",
)
ACTIONS = ("mount", "mounts", "unmount")
MOUNT_S = 600.0  # memory is faulted in before the answer
TELL_S = 10.0
LOOK_S = 0.2


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=ACTIONS, help="tell a running node")
    parser.add_argument("--size", help="of the segment to mount")
    parser.add_argument("--segment", type=int, metavar="NUMBER", help="which one to unmount")
    parser.add_argument("--stay", action="store_true", help="unmount: it takes part again")
    parser.add_argument("--wait", metavar="TIME", help="unmount: wait until it is gone")
    add_settings(parser, NodeConfig)


def run(args: argparse.Namespace, output: Output) -> int:
    config = load_settings(args, NodeConfig).value
    if args.action is not None:
        return _tell(args, config, output)
    from moonpool.pool.node import NodeServer, run_node

    def ready(node: NodeServer) -> None:
        record = {"ready": "node", "name": node.name, "tcp": node.tcp, "memory": config.memory}
        output.result(
            record,
            f"node {node.name} lends {format_bytes(config.memory)} to {config.master},"
            f" data on {node.tcp}",
        )

    run_node(config, ready)
    return EXIT_OK


def _tell(args: argparse.Namespace, config: NodeConfig, output: Output) -> int:
    from moonpool.pool.node_control import control_of, tell_node

    path = control_of(config.directory, config.name)
    match args.action:
        case "mount":
            if args.size is None:
                raise BadInput("how much? give --size")
            size = parse_bytes(args.size)
            _say(output, tell_node(path, MOUNT_S, do="mount", size=size)["segment"])
        case "mounts":
            for segment in tell_node(path, TELL_S, do="mounts")["segments"]:
                _say(output, segment)
        case _:
            if args.segment is None:
                raise BadInput("which one? give --segment")
            return _unmount(args, path, output)
    return EXIT_OK


def _unmount(args: argparse.Namespace, path: Path, output: Output) -> int:
    from moonpool.pool.node_control import tell_node

    order = {"do": "unmount", "segment": args.segment, "stay": args.stay}
    segment = tell_node(path, TELL_S, **order)["segment"]
    until = time.monotonic() + (parse_duration(args.wait) if args.wait else 0.0)
    while not args.stay and time.monotonic() < until:
        known = tell_node(path, TELL_S, do="mounts")["segments"]
        mine = [one for one in known if one["segment"] == args.segment]
        if not mine:
            segment = {**segment, "state": "gone", "objects": 0}
            break
        segment = mine[0]
        time.sleep(LOOK_S)
    _say(output, segment)
    return EXIT_FAILED if args.wait and not args.stay and segment["state"] != "gone" else EXIT_OK


def _say(output: Output, segment: dict[str, Any]) -> None:
    output.result(
        segment,
        f"segment {segment['segment']}: {segment['state']}, "
        f"{format_bytes(segment['capacity_bytes'])}, objects: {segment['objects']:,}",
    )
