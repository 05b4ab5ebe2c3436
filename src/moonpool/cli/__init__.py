"""The command line. One file per command, imported only when it is the one asked for."""

from moonpool.cli.app import main

__all__ = ["main"]
