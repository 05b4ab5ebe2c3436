"""`moonpool master`: the process that decides placement, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse

from moonpool.cli.options import add_settings, load_settings
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_OK
from moonpool.core.sections import MasterConfig

EXAMPLES = (
    "moonpool master                  # 127.0.0.1:7400, this machine only",
    "moonpool master --host 0.0.0.0   # for other machines; needs MOONPOOL_TOKEN",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, MasterConfig)


def run(args: argparse.Namespace, output: Output) -> int:
    from moonpool.pool.master import run_master

    def ready(address: str) -> None:
        output.result({"ready": "master", "address": address}, f"master listens on {address}")

    run_master(load_settings(args, MasterConfig).value, ready)
    return EXIT_OK
