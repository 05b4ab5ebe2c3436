"""The admin process: a pool's client behind uvicorn, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from moonpool.core.address import Address, cannot_listen
from moonpool.core.admin_section import AdminConfig
from moonpool.core.clock import SystemClock
from moonpool.core.errors import missing_extra
from moonpool.dashboard.app import Admin
from moonpool.dashboard.watch import Watch, watching
from moonpool.pool.aio import AsyncPool, connect

FAREWELL_S: Final = 3
CALL_S: Final = 10.0


def run_admin(config: AdminConfig, ready: Callable[[str, dict[str, str]], None]) -> None:
    """Serve; `ready` gets the URL, and where events are published and replayed. Raises Unreachable
    (no master), BadInput (no port), BadConfig (no port for events)."""
    try:
        import uvicorn  # noqa: F401
    except ImportError:
        raise missing_extra("the admin service", "admin") from None
    asyncio.run(_serve(config, ready))


async def _serve(config: AdminConfig, ready: Callable[[str, dict[str, str]], None]) -> None:
    import uvicorn

    async with AsyncExitStack() as stack:
        pool = await connect(config.master, token=config.token, timeout_s=CALL_S)
        stack.push_async_callback(pool.close)
        watch = await stack.enter_async_context(watching(Watch(pool, config, SystemClock())))
        published = await stack.enter_async_context(_publishing(pool, config))
        application = Admin(pool, watch, config).application()
        listening = stack.enter_context(_listen(config))
        server = uvicorn.Server(
            uvicorn.Config(
                application,
                lifespan="off",
                ws="none",
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=FAREWELL_S,
            )
        )
        ready(f"http://{Address(config.host, listening.getsockname()[1])}", published)
        await server.serve(sockets=[listening])


@asynccontextmanager
async def _publishing(pool: AsyncPool, config: AdminConfig) -> AsyncIterator[dict[str, str]]:
    """Where the pool's KV events are published; nowhere unless asked for."""
    if not config.events:
        yield {}
        return
    from moonpool.pool.kv_publisher import KvPublisher, KvSettings

    publisher = KvPublisher(
        pool,
        KvSettings(
            config.host,
            config.events_port,
            config.replay_port,
            config.events_form,
            config.events_prefix.encode(),
            config.events_block_size,
            config.events_kept,
        ),
    )
    publisher.start()
    running = asyncio.create_task(publisher.run())
    try:
        yield {"events": publisher.events, "replay": publisher.replay}
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        publisher.close()


def _listen(config: AdminConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family)
    except OSError as error:
        raise cannot_listen(config.host, config.port, error) from None
