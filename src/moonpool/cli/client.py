"""What the commands that talk to a running pool share: options, connection, keys for people."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from moonpool.cli.options import add_settings, load_settings
from moonpool.core.sections import ClientConfig

if TYPE_CHECKING:
    from moonpool.pool.pool import Pool

_OTHERS = ("cache_entries_max", "touch_flush_ms", "pinned_bytes_max", "hedge_ms", "labels")


def add_client_options(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, ClientConfig, skip=_OTHERS)


def open_pool(args: argparse.Namespace) -> Pool:
    """Connect as the options, the environment and the file say. Raises Unreachable, Refused,
    BadConfig."""
    from moonpool.pool.connect import connect_with

    return connect_with(load_settings(args, ClientConfig).value)


def key_text(key: bytes) -> str:
    """A key for people and JSON; bytes that are no UTF-8 show as \\xNN."""
    return key.decode("utf-8", "backslashreplace")
