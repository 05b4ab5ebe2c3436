"""Calls for who runs a pool: what a blocking pool offers besides objects."""

from __future__ import annotations

from moonpool.pool import operations
from moonpool.pool.shell import Shell


class Upkeep:
    """Part of Pool."""

    _shell: Shell
    _timeout_s: float

    def drain(self, node: str, *, stop: bool = False, timeout_s: float | None = None) -> int:
        """Move all objects away from `node`: nothing new comes, and what is there is copied to
        others where there is room; it stays readable meanwhile. Returns at once, how many copies
        are still there: call again until it is 0. With `stop` the node takes part again.

        Raises BadInput when no such node is known.
        """
        timeout = self._timeout_s if timeout_s is None else timeout_s
        return self._shell.run(lambda context: operations.drain(context, node, stop), timeout)
