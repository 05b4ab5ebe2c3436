"""`moonpool replay`: a trace through a real pool of separate processes, every byte checked."""

from moonpool.cli.replay.command import EXAMPLES, configure, run

__all__ = ["EXAMPLES", "configure", "run"]
