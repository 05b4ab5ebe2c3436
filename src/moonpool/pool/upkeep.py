"""Calls for who runs a pool: what a blocking pool offers besides objects."""

from __future__ import annotations

from moonpool.pool import operations
from moonpool.pool.inputs import Key, as_count, as_prefix, as_where
from moonpool.pool.results import ObjectPage, RemovedWhere
from moonpool.pool.shell import Shell
from moonpool.pool.tasks import TaskCalls

PAGE = 1000


class Upkeep(TaskCalls):
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

    def remove_where(
        self,
        *,
        prefix: Key = b"",
        contains: Key = b"",
        suffix: Key = b"",
        min_bytes: int = 0,
        max_bytes: int | None = None,
        dry_run: bool = False,
        timeout_s: float | None = None,
    ) -> RemovedWhere:
        """Remove every object that fits all the conditions given; with `dry_run` only count them.

        The pool is looked through in steps: what is put meanwhile may or may not be found.
        """
        where = as_where(prefix, contains, suffix, min_bytes, max_bytes, dry_run)
        timeout = self._timeout_s if timeout_s is None else timeout_s
        return self._shell.run(
            lambda context: operations.remove_where(context, where, timeout), timeout
        )

    def list_page(
        self,
        prefix: Key = b"",
        *,
        cursor: int = 0,
        limit: int = PAGE,
        timeout_s: float | None = None,
    ) -> ObjectPage:
        """A page of `list`: about `limit` objects at most, and the cursor of the next page, None
        at the end. A page may be short, or empty, and another one follow. What is there all the
        time is on one page; what comes or goes meanwhile may or may not show.

        A cursor is good for as long as the master is; to another one it is just a place to begin.
        """
        encoded, at = as_prefix(prefix), as_count(cursor, "cursor")
        count = as_count(limit, "limit", low=1)
        objects, following = self._shell.run(
            lambda context: operations.list_objects(context, encoded, at, count),
            self._timeout_s if timeout_s is None else timeout_s,
        )
        return ObjectPage(objects, following if following >= 0 else None)
