"""The admin process: a pool's client behind uvicorn, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from moonpool.core.address import Address, cannot_listen
from moonpool.core.admin_section import AdminConfig
from moonpool.core.clock import SystemClock
from moonpool.core.errors import missing_extra
from moonpool.core.tls import server_context
from moonpool.dashboard.app import Admin
from moonpool.dashboard.watch import Watch, watching
from moonpool.pool.aio import AsyncPool
from moonpool.pool.aio_shell import AsyncShell
from moonpool.pool.connect import client_config

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
        server_context(config)  # says what is wrong with the files before anything listens
        tls = {"tls_ca": config.tls_ca, "tls_cert": config.tls_cert, "tls_key": config.tls_key}
        shell = AsyncShell(client_config(config.master, config.token, CALL_S, **tls))
        stack.push_async_callback(shell.close)
        await shell.reach(CALL_S)
        pool = AsyncPool(shell, shell.config)
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
                ssl_certfile=config.tls_cert or None,
                ssl_keyfile=config.tls_key or None,
                ssl_ca_certs=config.tls_ca if config.tls_mutual else None,
                ssl_cert_reqs=ssl.CERT_REQUIRED if config.tls_mutual else ssl.CERT_NONE,
            )
        )
        scheme = "https" if config.tls_cert else "http"
        ready(f"{scheme}://{Address(config.host, listening.getsockname()[1])}", published)
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
