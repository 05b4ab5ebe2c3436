"""`moonpool admin`: a pool's web page, metrics and HTTP API, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse

from moonpool.cli.options import add_settings, load_settings
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_OK
from moonpool.cli.signals import sigterm_interrupts
from moonpool.core.admin_section import AdminConfig

EXAMPLES = (
    "moonpool admin                              # of the pool on this machine, on port 7480",
    "moonpool admin --master pool:7400 --port 0  # of another one, on any free port",
    "moonpool admin --events                     # and its blocks told to routers over ZeroMQ",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, AdminConfig)


def run(args: argparse.Namespace, output: Output) -> int:
    from moonpool.dashboard import run_admin

    config = load_settings(args, AdminConfig).value

    def ready(url: str, published: dict[str, str]) -> None:
        record = {"ready": "admin", "url": url, "master": config.master, **published}
        text = f"the pool at {config.master} is shown on {url}"
        if published:
            text += f", its events are on {published['events']} (replay {published['replay']})"
        output.result(record, text)

    with sigterm_interrupts():
        try:
            run_admin(config, ready)
        except KeyboardInterrupt:
            output.note("taking the admin service down")
    return EXIT_OK
