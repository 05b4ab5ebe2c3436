"""Tasks of the asyncio pool; see `tasks` for what each call does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from moonpool.pool import protocol_tasks
from moonpool.pool.inputs import Key, as_keys
from moonpool.pool.protocol import Protocol as Dialogue
from moonpool.pool.results import TaskInfo, TaskInfos, TaskOutcomes
from moonpool.pool.tasks import DEADLINE_S

T = TypeVar("T")


class AsyncTask:
    """The awaitable twin of Task."""

    def __init__(self, calls: AsyncTaskCalls, id_: str) -> None:
        self._calls = calls
        self.id = id_

    async def info(self, *, timeout_s: float | None = None) -> TaskInfo:
        return await self._calls._run(
            lambda context: protocol_tasks.ask_task(context, self.id), timeout_s
        )

    async def wait(self, *, timeout_s: float | None = None) -> TaskInfo:
        return await self._calls._run(
            lambda context: protocol_tasks.wait_for_task(context, self.id), timeout_s
        )

    async def cancel(self, *, timeout_s: float | None = None) -> TaskInfo:
        return await self._calls._run(
            lambda context: protocol_tasks.ask_task(context, self.id, True), timeout_s
        )

    async def results(self, *, timeout_s: float | None = None) -> TaskOutcomes:
        return await self._calls._run(
            lambda context: protocol_tasks.task_results(context, self.id), timeout_s
        )


class AsyncTaskCalls:
    """Part of AsyncPool."""

    async def copy(
        self,
        keys: Sequence[Key],
        to: str,
        *,
        deadline_s: float = DEADLINE_S,
        timeout_s: float | None = None,
    ) -> AsyncTask:
        return await self._begin("copy", keys, to, "", deadline_s, timeout_s)

    async def move(
        self,
        keys: Sequence[Key],
        to: str,
        *,
        source: str = "",
        deadline_s: float = DEADLINE_S,
        timeout_s: float | None = None,
    ) -> AsyncTask:
        return await self._begin("move", keys, to, source, deadline_s, timeout_s)

    async def clear(
        self,
        keys: Sequence[Key],
        source: str,
        *,
        deadline_s: float = DEADLINE_S,
        timeout_s: float | None = None,
    ) -> AsyncTask:
        return await self._begin("clear", keys, "", source, deadline_s, timeout_s)

    def task(self, id_: str) -> AsyncTask:
        return AsyncTask(self, id_)

    async def tasks(self, *, timeout_s: float | None = None) -> TaskInfos:
        return await self._run(protocol_tasks.list_tasks, timeout_s)

    async def _begin(
        self,
        kind: str,
        keys: Sequence[Key],
        target: str,
        source: str,
        deadline_s: float,
        timeout_s: float | None,
    ) -> AsyncTask:
        call = protocol_tasks.new_task(kind, as_keys(keys), target, source, deadline_s)
        info = await self._run(lambda context: protocol_tasks.begin_task(context, call), timeout_s)
        return self.task(info.id)

    async def _run(self, build: Callable[..., Dialogue[T]], timeout_s: float | None) -> T:
        raise NotImplementedError
