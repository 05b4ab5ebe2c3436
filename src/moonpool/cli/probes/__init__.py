"""What `moonpool doctor` looks at: one file per kind of thing, findings out, nothing changed."""

from moonpool.cli.probes.finding import Finding, State

__all__ = ["Finding", "State"]
