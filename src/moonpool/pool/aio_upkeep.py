"""Calls for who runs a pool, awaitable: the twin of upkeep.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from moonpool.pool import operations
from moonpool.pool.inputs import Key, as_count, as_prefix, as_where
from moonpool.pool.protocol import Protocol
from moonpool.pool.results import ObjectPage, RemovedWhere
from moonpool.pool.upkeep import PAGE

T = TypeVar("T")


class AsyncUpkeep:
    """Part of AsyncPool."""

    _timeout_s: float

    async def _run(self, build: Callable[..., Protocol[T]], timeout_s: float | None) -> T:
        raise NotImplementedError

    async def remove_where(
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
        where = as_where(prefix, contains, suffix, min_bytes, max_bytes, dry_run)
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        return await self._run(
            lambda context: operations.remove_where(context, where, wait_s), timeout_s
        )

    async def drain(self, node: str, *, stop: bool = False, timeout_s: float | None = None) -> int:
        return await self._run(lambda context: operations.drain(context, node, stop), timeout_s)

    async def list_page(
        self,
        prefix: Key = b"",
        *,
        cursor: int = 0,
        limit: int = PAGE,
        timeout_s: float | None = None,
    ) -> ObjectPage:
        encoded, at = as_prefix(prefix), as_count(cursor, "cursor")
        count = as_count(limit, "limit", low=1)
        objects, following = await self._run(
            lambda context: operations.list_objects(context, encoded, at, count), timeout_s
        )
        return ObjectPage(objects, following if following >= 0 else None)
