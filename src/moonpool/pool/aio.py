"""The asyncio shell and face: the same protocols as the blocking pool, driven by an event loop.

Requests to the master share one connection. Copies run in a small thread pool: they release the
GIL, so the loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, TypeVar

from moonpool.core.clock import SystemClock
from moonpool.core.errors import (
    Closed,
    MoonpoolError,
    ProtocolMismatch,
    Refused,
    TransferError,
)
from moonpool.core.host import host_id
from moonpool.core.sections import ClientConfig
from moonpool.pool import messages as m
from moonpool.pool import operations
from moonpool.pool.client_state import ClientState
from moonpool.pool.connect import client_config
from moonpool.pool.inputs import (
    Key,
    Pin,
    as_items,
    as_key,
    as_key_column,
    as_keys,
    as_options,
    as_prefix,
    as_targets,
)
from moonpool.pool.link import AsyncLink
from moonpool.pool.openers import PortOpener
from moonpool.pool.operations import EventBatch
from moonpool.pool.pool import IN_FLIGHT_WAIT_S
from moonpool.pool.ports import Buffer
from moonpool.pool.protocol import CallAgents, CallMaster, Context, MasterLost, Pause
from moonpool.pool.protocol import Protocol as Dialogue
from moonpool.pool.protocol_put import store
from moonpool.pool.results import (
    Answers,
    Bools,
    Hit,
    Objects,
    PrefixMatch,
    PutResult,
    PutResults,
    RemoveStatuses,
)
from moonpool.pool.shell import run_agents

T = TypeVar("T")
COPY_THREADS = 4


class AsyncShell:
    """Drives protocols on the running event loop."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.clock = SystemClock()
        self.opener = PortOpener(config.token, config.shared_memory)
        self.state = ClientState(
            host_id(), self.opener.open, cache_entries_max=config.cache_entries_max
        )
        self._copies = ThreadPoolExecutor(COPY_THREADS, thread_name_prefix="moonpool-copy")
        self._link: AsyncLink | None = None
        self._linking = asyncio.Lock()
        self._closed = False

    async def connect(self, timeout_s: float) -> AsyncLink:
        """The link to the master, opened (again) when there is none."""
        async with self._linking:
            if self._link is None or self._link.closed:
                self._link = await AsyncLink.connect(
                    self.config.master,
                    self.config.token,
                    f"client-{os.getpid()}",
                    timeout_s=timeout_s,
                )
            return self._link

    async def run(self, build: Callable[[Context], Dialogue[T]], timeout_s: float) -> T:
        if self._closed:
            raise Closed("this pool was closed; connect again")
        deadline = self.clock.monotonic() + timeout_s
        dialogue = build(Context(self.state, self.clock.monotonic, deadline))
        try:
            effect = next(dialogue)
            while True:
                effect = dialogue.send(await self._perform(effect, deadline))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def close(self) -> None:
        self._closed = True
        if self._link is not None:
            self._link.close()
        self._copies.shutdown(wait=True)
        self.state.close()
        self.opener.close()

    async def _perform(self, effect: Any, deadline: float) -> Any:
        match effect:
            case CallMaster():
                return await self._ask(effect.message, deadline)
            case CallAgents():
                loop = asyncio.get_running_loop()
                # Shielded: a copy into the caller's memory ends before the call does.
                copying = loop.run_in_executor(self._copies, run_agents, effect)
                try:
                    return await asyncio.shield(copying)
                except asyncio.CancelledError:
                    while not copying.done():  # cancelled again meanwhile: it still must end
                        with suppress(asyncio.CancelledError):
                            await asyncio.wait([copying])
                    raise
            case Pause():
                await asyncio.sleep(effect.seconds)
        return None

    async def _ask(self, message: m.ClientRequest, deadline: float) -> m.Message | MasterLost:
        left = max(0.001, deadline - self.clock.monotonic())
        try:
            link = await self.connect(left)
            reply = await link.request(message, left)
        except (Refused, ProtocolMismatch) as error:
            return MasterLost(str(error), refused=True, code=error.code)
        except TransferError as error:
            return MasterLost(str(error), code=error.code)
        if isinstance(reply, m.Failure):
            return MasterLost(reply.text, refused=True, code=reply.code)
        return reply


class AsyncPool:
    """The awaitable twin of Pool; see there for what each call does."""

    def __init__(self, shell: AsyncShell, config: ClientConfig) -> None:
        self._shell = shell
        self._timeout_s = config.timeout_ms / 1000
        self._verify = config.verify
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
            parents=[parent],
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
        items = as_items(keys, values, parents, parent)
        options = as_options(replicas, min_replicas, pin, ttl_s, parents == "chain", replace)
        if not items:
            return []
        return await self._run(
            lambda context: store(context, items, options, wait_s=wait_s), timeout_s
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

    async def exists(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> Bools:
        encoded = as_key_column(keys)
        return await self._run(lambda context: operations.exists(context, encoded), timeout_s)

    async def match_prefix(
        self, keys: Sequence[Key], *, timeout_s: float | None = None
    ) -> PrefixMatch:
        encoded = as_keys(keys)
        return await self._run(lambda context: operations.match_prefix(context, encoded), timeout_s)

    async def remove(
        self, keys: Sequence[Key], *, timeout_s: float | None = None
    ) -> RemoveStatuses:
        encoded = as_keys(keys)
        wait_s = self._timeout(timeout_s)
        return await self._run(
            lambda context: operations.remove(context, encoded, wait_s), timeout_s
        )

    async def remove_prefix(self, prefix: Key, *, timeout_s: float | None = None) -> int:
        encoded = as_key(prefix)
        wait_s = self._timeout(timeout_s)
        return await self._run(
            lambda context: operations.remove_prefix(context, encoded, wait_s), timeout_s
        )

    async def list(self, prefix: Key = b"", *, timeout_s: float | None = None) -> Objects:
        """All objects whose key starts with `prefix`."""
        encoded = as_prefix(prefix)
        found: Objects = []
        cursor = 0
        while cursor >= 0:
            page, cursor = await self._run(
                lambda context, at=cursor: operations.list_objects(context, encoded, at, 1000),
                timeout_s,
            )
            found += page
        return found

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
        touches = self._shell.state.touches
        if not len(touches) or self._shell.clock.monotonic() - touches.oldest < self._flush_s:
            return
        if self._flush is None or self._flush.done():
            self._flush = asyncio.create_task(self._flush_touches())

    async def _flush_touches(self) -> None:
        with suppress(MoonpoolError):
            await self._run(operations.flush, min(1.0, self._timeout_s))

    async def _run(self, build: Callable[..., Dialogue[T]], timeout_s: float | None) -> T:
        return await self._shell.run(build, self._timeout(timeout_s))

    def _timeout(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s


async def connect(
    master: str | None = None, *, token: str | None = None, timeout_s: float | None = None
) -> AsyncPool:
    """As moonpool.connect, on the running event loop."""
    config = client_config(master, token, timeout_s)
    shell = AsyncShell(config)
    try:
        await shell.connect(config.timeout_ms / 1000)
    except BaseException:
        await shell.close()
        raise
    return AsyncPool(shell, config)
