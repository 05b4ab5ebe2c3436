"""The asyncio face: the awaitable twin of Pool, name by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Literal, TypeVar, overload

from moonpool.core.errors import MoonpoolError
from moonpool.core.sections import ClientConfig
from moonpool.pool import operations
from moonpool.pool.aio_sessions import (
    AsyncReadSession,
    AsyncWriteSession,
    SessionOpening,
    ViewOpening,
)
from moonpool.pool.aio_shell import AsyncShell
from moonpool.pool.aio_tasks import AsyncTaskCalls
from moonpool.pool.aio_upkeep import AsyncUpkeep
from moonpool.pool.connect import client_config
from moonpool.pool.inputs import (
    Key,
    Pin,
    as_count,
    as_key,
    as_key_column,
    as_keys,
    as_options,
    as_prefix,
    as_puts,
    as_replicas,
    as_sizes,
    as_targets,
)
from moonpool.pool.operations import EventBatch
from moonpool.pool.pins import PinBudget
from moonpool.pool.pool import IN_FLIGHT_WAIT_S
from moonpool.pool.ports import Buffer, Status
from moonpool.pool.protocol import Context
from moonpool.pool.protocol import Protocol as Dialogue
from moonpool.pool.protocol_put import store
from moonpool.pool.protocol_range import get_range
from moonpool.pool.protocol_session import abort_forgotten
from moonpool.pool.results import (
    Answers,
    Bools,
    Hit,
    Miss,
    ObjectInfo,
    PrefixMatch,
    PutResult,
    PutResults,
    RemoveStatus,
    RemoveStatuses,
)
from moonpool.pool.session_state import WriteState
from moonpool.pool.view import View, copied_view, pinned_view

T = TypeVar("T")


class AsyncPool(AsyncTaskCalls, AsyncUpkeep):
    """The awaitable twin of Pool; see there for what each call does."""

    def __init__(self, shell: AsyncShell, config: ClientConfig) -> None:
        self._shell = shell
        self._timeout_s = config.timeout_ms / 1000
        self._verify = config.verify
        self._pins = PinBudget(config.pinned_bytes_max)
        self._flush_s = config.touch_flush_ms / 1000
        self._flush: asyncio.Task[None] | None = None

    async def put(
        self,
        key: Key,
        value: Buffer,
        *,
        replicas: int = 1,
        min_replicas: int | None = None,
        parent: Key | None = None,
        pin: Pin = None,
        ttl_s: float | None = None,
        replace: bool = False,
        wait_s: float = IN_FLIGHT_WAIT_S,
        timeout_s: float | None = None,
    ) -> PutResult:
        results = await self.put_many(
            [key],
            [value],
            replicas=replicas,
            min_replicas=min_replicas,
            parents=None if parent is None else [parent],
            pin=pin,
            ttl_s=ttl_s,
            replace=replace,
            wait_s=wait_s,
            timeout_s=timeout_s,
        )
        return results[0].raise_for_status(as_key(key))

    async def put_many(
        self,
        keys: Sequence[Key],
        values: Sequence[Buffer],
        *,
        replicas: int = 1,
        min_replicas: int | None = None,
        parents: Sequence[Key | None] | Literal["chain"] | None = None,
        parent: Key | None = None,
        pin: Pin = None,
        ttl_s: float | None = None,
        replace: bool = False,
        wait_s: float = IN_FLIGHT_WAIT_S,
        timeout_s: float | None = None,
    ) -> PutResults:
        puts = as_puts(keys, values, parents, parent)
        options = as_options(replicas, min_replicas, pin, ttl_s, parents, replace)
        if not puts:
            return []
        return await self._run(
            lambda context: store(context, puts, options, wait_s=wait_s), timeout_s
        )

    async def get(self, key: Key, *, timeout_s: float | None = None) -> bytes | None:
        result = (await self.get_many([key], timeout_s=timeout_s))[0]
        return result.data if isinstance(result, Hit) else None

    async def get_into(
        self, key: Key, buffer: Buffer, *, timeout_s: float | None = None
    ) -> int | None:
        result = (await self.get_many_into([key], [buffer], timeout_s=timeout_s))[0]
        if isinstance(result, Hit):
            return result.size
        result.raise_for_buffer(as_key(key))
        return None

    async def get_many(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> Answers:
        return await self._fetch(as_keys(keys), None, timeout_s)

    async def get_many_into(
        self, keys: Sequence[Key], buffers: Sequence[Buffer], *, timeout_s: float | None = None
    ) -> Answers:
        encoded = as_keys(keys)
        return await self._fetch(encoded, as_targets(buffers, len(encoded)), timeout_s)

    def view(
        self, key: Key, *, verify: bool = False, timeout_s: float | None = None
    ) -> ViewOpening:
        return ViewOpening(lambda: self._view(key, verify, timeout_s))

    async def view_many(
        self, keys: Sequence[Key], *, timeout_s: float | None = None
    ) -> Sequence[View | None]:
        views = await self._run(
            lambda context: operations.local_views(context, as_keys(keys), self._pins), timeout_s
        )
        self._report_reads()
        return views

    def write_session(
        self,
        keys: Sequence[Key],
        sizes: Sequence[int],
        *,
        layers: int = 1,
        replicas: int = 1,
        min_replicas: int | None = None,
        parents: Sequence[Key | None] | Literal["chain"] | None = None,
        parent: Key | None = None,
        timeout_s: float | None = None,
    ) -> SessionOpening[AsyncWriteSession]:
        def make() -> AsyncWriteSession:
            copies = as_replicas(replicas, min_replicas)
            named, room = as_keys(keys), as_sizes(sizes)
            state = WriteState(named, room, copies, layers=layers, parents=parents, parent=parent)
            return AsyncWriteSession(self._shell, state, self._timeout(timeout_s))

        return SessionOpening(self._shell, make)

    def read_session(
        self, keys: Sequence[Key], *, layers: int = 1, timeout_s: float | None = None
    ) -> SessionOpening[AsyncReadSession]:
        def make() -> AsyncReadSession:
            timeout = self._timeout(timeout_s)
            return AsyncReadSession(self._shell, as_keys(keys), layers=layers, timeout_s=timeout)

        return SessionOpening(self._shell, make)

    @overload  # text is a sequence of text, too: the first that fits is meant
    async def exists(  # type: ignore[overload-overlap]
        self, key: str | bytes, *, timeout_s: float | None = None
    ) -> bool: ...

    @overload
    async def exists(self, key: Sequence[Key], *, timeout_s: float | None = None) -> Bools: ...

    async def exists(
        self, key: Key | Sequence[Key], *, timeout_s: float | None = None
    ) -> bool | Bools:
        single = isinstance(key, str | bytes)
        keys = as_key_column([key] if isinstance(key, str | bytes) else key)
        found = await self._run(lambda context: operations.exists(context, keys), timeout_s)
        return found[0] if single else found

    async def match_prefix(
        self, keys: Sequence[Key], *, timeout_s: float | None = None
    ) -> PrefixMatch:
        encoded = as_keys(keys)
        return await self._run(lambda context: operations.match_prefix(context, encoded), timeout_s)

    @overload
    async def remove(  # type: ignore[overload-overlap]
        self, key: str | bytes, *, timeout_s: float | None = None
    ) -> RemoveStatus: ...

    @overload
    async def remove(
        self, key: Sequence[Key], *, timeout_s: float | None = None
    ) -> RemoveStatuses: ...

    async def remove(
        self, key: Key | Sequence[Key], *, timeout_s: float | None = None
    ) -> RemoveStatus | RemoveStatuses:
        single = isinstance(key, str | bytes)
        keys = [as_key(key)] if isinstance(key, str | bytes) else as_keys(key)
        wait_s = self._timeout(timeout_s)
        statuses = await self._run(
            lambda context: operations.remove(context, keys, wait_s), timeout_s
        )
        return statuses[0] if single else statuses

    async def remove_prefix(self, prefix: Key, *, timeout_s: float | None = None) -> int:
        encoded = as_key(prefix)
        wait_s = self._timeout(timeout_s)
        return await self._run(
            lambda context: operations.remove_prefix(context, encoded, wait_s), timeout_s
        )

    async def list(
        self, prefix: Key = b"", *, page: int = 1000, timeout_s: float | None = None
    ) -> AsyncIterator[ObjectInfo]:
        """`async for found in pool.list(prefix)`; holds one page at a time."""
        encoded = as_prefix(prefix)
        cursor = 0
        while cursor >= 0:
            objects, cursor = await self._run(
                lambda context, at=cursor: operations.list_objects(context, encoded, at, page),
                timeout_s,
            )
            for found in objects:
                yield found

    async def get_range(
        self,
        key: Key,
        offset: int,
        size: int,
        *,
        verify: bool = False,
        timeout_s: float | None = None,
    ) -> bytes | None:
        named = as_key(key)
        start, length = as_count(offset, "offset"), as_count(size, "size")
        answer = await self._run(
            lambda context: get_range(context, named, start, length, verify), timeout_s
        )
        return answer.data if isinstance(answer, Hit) else None

    async def stat(self, *, timeout_s: float | None = None) -> dict[str, object]:
        return await self._run(operations.stat, timeout_s)

    async def events(
        self,
        position: tuple[int, int] = (0, 0),
        *,
        limit: int = 1000,
        wait_s: float = 0.0,
        timeout_s: float | None = None,
    ) -> EventBatch:
        return await self._run(
            lambda context: operations.events(context, position, limit, wait_s), timeout_s
        )

    async def flush(self, *, timeout_s: float | None = None) -> None:
        await self._run(operations.flush, timeout_s)

    async def close(self) -> None:
        if self._flush is not None:
            self._flush.cancel()
            await asyncio.wait([self._flush])
        await self._shell.close()

    async def __aenter__(self) -> AsyncPool:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _view(self, key: Key, verify: bool, timeout_s: float | None) -> View:
        key, state = as_key(key), self._shell.state
        for fresh in (False, True):
            placement = await self._run(
                lambda context, anew=fresh: operations.place(context, key, anew), timeout_s
            )
            if isinstance(placement, Miss):
                return copied_view(placement)
            if verify:  # the sum over an object takes its time; a pin alone takes none
                view = await self._shell.copy(pinned_view, placement, self._pins, True)
            else:
                view = pinned_view(placement, self._pins, False)
            if isinstance(view, View):
                state.touches.read(placement, self._shell.now)
                self._report_reads()
                return view
            if view != -1 - Status.MOVED:
                break
            state.forget(key, placement)
        return copied_view((await self._fetch([key], None, timeout_s))[0])

    async def _fetch(
        self, keys: Sequence[bytes], buffers: Sequence[Buffer] | None, timeout_s: float | None
    ) -> Answers:
        if not keys:
            return []
        answers = await self._run(
            lambda context: operations.get_many(context, keys, buffers, self._verify), timeout_s
        )
        self._report_reads()
        return answers

    def _report_reads(self) -> None:
        """Reads that ride on no request are reported after touch_flush_ms, beside the calls."""
        if not self._shell.state.to_tell(self._shell.now(), self._flush_s):
            return
        if self._flush is None or self._flush.done():
            self._flush = asyncio.create_task(self._quietly(operations.flush))

    async def _quietly(self, build: Callable[[Context], Dialogue[None]]) -> None:
        with suppress(MoonpoolError):
            await self._shell.run(build, min(1.0, self._timeout_s))

    async def _run(self, build: Callable[..., Dialogue[T]], timeout_s: float | None) -> T:
        if self._shell.state.forgotten:  # sessions that nobody ended
            self._shell.beside(self._quietly(abort_forgotten))
        return await self._shell.run(build, self._timeout(timeout_s))

    def _timeout(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s


async def connect(
    master: str | None = None, *, token: str | None = None, timeout_s: float | None = None
) -> AsyncPool:
    """As moonpool.connect, on the running event loop."""
    return await connect_with(client_config(master, token, timeout_s))


async def connect_with(config: ClientConfig) -> AsyncPool:
    """The same for who has settings already."""
    face: type[AsyncPool] = AsyncPool
    shell = AsyncShell(config)
    if config.tracing:
        from moonpool.pool.tracing_client import TracedAsyncPool, TracedAsyncShell

        face, shell = TracedAsyncPool, TracedAsyncShell(config)
    try:
        await shell.reach(config.timeout_ms / 1000)
    except BaseException:
        await shell.close()
        raise
    return face(shell, config)
