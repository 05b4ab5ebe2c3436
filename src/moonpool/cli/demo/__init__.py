"""`moonpool demo`: two engines, one pool, one long document; and with --trace a replay."""

from moonpool.cli.demo.command import EXAMPLES, configure, run

__all__ = ["EXAMPLES", "configure", "run"]
