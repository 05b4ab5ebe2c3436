"""The awaitable twins of the sessions, and the opening of what is used by `async with`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from moonpool.core.errors import MoonpoolError
from moonpool.pool.gathering import RowsWanted
from moonpool.pool.ports import Buffer
from moonpool.pool.results import Miss, PutResult
from moonpool.pool.session_state import ReadState, WriteState
from moonpool.pool.view import View

if TYPE_CHECKING:
    from moonpool.pool.aio_shell import AsyncShell

S = TypeVar("S", bound="AsyncWriteSession | AsyncReadSession")


class AsyncWriteSession:
    """WriteSession with `write`, `write_at`, `commit` and `abort` to be awaited; see there."""

    def __init__(self, shell: AsyncShell, state: WriteState, timeout_s: float) -> None:
        self._shell = shell
        self._state = state
        self._timeout_s = timeout_s

    @property
    def layers(self) -> int:
        return self._state.layers

    @property
    def results(self) -> list[PutResult | None]:
        """Per object: None while it is being written."""
        return self._state.results

    async def begin(self) -> None:
        await self._shell.run(self._state.begin, self._timeout_s)

    async def write(self, layer: int, buffers: Sequence[Buffer]) -> None:
        await self._shell.run(self._state.write(layer, buffers), self._timeout_s)

    async def write_at(self, index: int, offset: int, data: Buffer) -> None:
        await self._shell.run(self._state.write_at(index, offset, data), self._timeout_s)

    async def commit(self) -> list[PutResult]:
        self._state.end()
        return await self._shell.run(self._state.commit, self._timeout_s)

    async def abort(self) -> None:
        if self._state.open:
            self._state.end()
            await self._shell.run(self._state.abort, self._timeout_s)

    async def __aenter__(self) -> AsyncWriteSession:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            await self.abort()
        elif self._state.open:
            await self.commit()


class AsyncReadSession:
    """ReadSession with `read`, `read_at` and `close` to be awaited; see there."""

    def __init__(
        self, shell: AsyncShell, keys: Sequence[bytes], *, layers: int, timeout_s: float
    ) -> None:
        self._shell = shell
        self._state = ReadState(layers)
        self._keys = keys
        self._timeout_s = timeout_s

    @property
    def layers(self) -> int:
        return self._state.layers

    @property
    def sizes(self) -> list[int]:
        """Of each object in bytes; 0 for a miss."""
        return self._state.sizes

    @property
    def misses(self) -> list[Miss | None]:
        return self._state.misses

    async def begin(self) -> None:
        await self._shell.run(
            lambda context: self._state.begin(context, self._keys), self._timeout_s
        )

    async def read(self, layer: int, buffers: Sequence[Buffer]) -> list[bool]:
        return await self._shell.run(self._state.read(layer, buffers), self._timeout_s)

    async def read_at(self, index: int, offset: int, buffer: Buffer) -> bool:
        want = self._state.read_at(index, offset, buffer)
        return (await self._shell.run(want, self._timeout_s))[index]

    async def read_rows(self, wanted: RowsWanted, out: Buffer) -> bool:
        return await self._shell.run(self._state.read_rows(wanted, out), self._timeout_s)

    async def close(self) -> None:
        if self._state.end():
            await self._shell.run(self._state.release, self._timeout_s)

    async def __aenter__(self) -> AsyncReadSession:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class SessionOpening(Generic[S]):
    """`async with pool.write_session(...) as session`, or `session = await ...`."""

    def __init__(self, shell: AsyncShell, make: Callable[[], S]) -> None:
        self._shell = shell
        self._make = make
        self._session: S | None = None

    def __await__(self) -> Generator[Any, None, S]:
        return self._open().__await__()

    async def _open(self) -> S:
        session = self._make()
        beginning = asyncio.create_task(session.begin())
        try:
            await asyncio.shield(beginning)
        except asyncio.CancelledError:
            # What is granted meanwhile is given back by itself; the caller need not wait for it.
            self._shell.beside(_leave(session, beginning))
            raise
        return session

    async def __aenter__(self) -> S:
        self._session = await self._open()
        return self._session

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.__aexit__(kind, error, trace)


async def _leave(session: S, beginning: asyncio.Task[None]) -> None:
    """As a `with` block that was cancelled does."""
    with suppress(MoonpoolError):
        await beginning
        await session.__aexit__(asyncio.CancelledError, None, None)


class ViewOpening:
    """`async with pool.view(key) as data`, or `view = await pool.view(key)`."""

    def __init__(self, find: Callable[[], Coroutine[Any, Any, View]]) -> None:
        self._find = find
        self._view: View | None = None

    def __await__(self) -> Generator[Any, None, View]:
        return self._find().__await__()

    async def __aenter__(self) -> memoryview | None:
        self._view = await self._find()
        return self._view.data

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._view is not None:
            self._view.close()
