"""The router process: desk, relay, brain over HTTP, probes and discovery on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from typing import Any

from moonpool.core.address import Address
from moonpool.core.errors import BadConfig, missing_extra
from moonpool.core.router_section import RouterConfig
from moonpool.router.brain import Brain
from moonpool.router.config import BrainConfig
from moonpool.router.cost_dynamo import DynamoCost
from moonpool.router.cost_seconds import SecondsCost
from moonpool.router.discovery.base import parse_source
from moonpool.router.discovery.follower import Follower
from moonpool.router.http.client import Timeouts
from moonpool.router.http.rules import Limits
from moonpool.router.http.server import HttpServer
from moonpool.router.service.api import Api
from moonpool.router.service.asks import BytesReader, TextReader
from moonpool.router.service.desk import Desk
from moonpool.router.service.followed import Followed
from moonpool.router.service.probe import Prober
from moonpool.router.service.relay import Relay, RelayTimeouts
from moonpool.router.service.replicas import PATH as REPLICA_PATH
from moonpool.router.service.replicas import Replicas
from moonpool.router.service.specs import WorkerSpec, parse_specs
from moonpool.router.subscriber import PoolSubscriber

SWEEP_S = 0.1


def brain_config(config: RouterConfig) -> BrainConfig:
    """The part of the configuration that decides."""
    return BrainConfig(
        cost=SecondsCost() if config.cost == "seconds" else DynamoCost(),
        temperature=config.temperature,
        affinity=config.affinity,
        remote_prefill_tokens=config.remote_prefill_tokens,
        busy_requests=config.busy_requests,
    )


def static_specs(config: RouterConfig) -> list[WorkerSpec]:
    """Workers of the configuration. Raises BadConfig."""
    found = [
        *parse_specs(config.workers, "both"),
        *parse_specs(config.prefill, "prefill"),
        *parse_specs(config.decode, "decode"),
    ]
    for spec in found:
        if spec.worker.role == "prefill" and not spec.worker.transfer:
            raise BadConfig(
                f"prefill worker {spec.worker.id} needs transfer=HOST:PORT, its side channel"
            )
    return found


class RouterServer:
    """The running router; without a `reader` texts are compared by bytes.

    Raises BadConfig; MissingExtra without `httptools`.
    """

    def __init__(self, config: RouterConfig, reader: TextReader | None = None) -> None:
        try:
            import httptools  # noqa: F401
        except ImportError:
            raise missing_extra("the router", "router") from None
        self.config = config
        self.desk = Desk(
            Brain(brain_config(config)),
            probe_s=config.health_ms / 1000,
            failures_max=config.health_failures,
        )
        text = reader or BytesReader()
        self.relay = Relay(
            self.desk,
            text,
            token=config.token,
            worker_token=config.worker_token,
            timeouts=RelayTimeouts(
                connect_s=config.connect_ms / 1000,
                first_byte_s=config.first_byte_ms / 1000,
                idle_s=config.idle_ms / 1000,
            ),
            retries=config.retries,
            connections_max=config.worker_connections_max,
            running_max=config.running_max,
            bytes_max=config.running_bytes_max,
            tokens_max=config.prompt_tokens_max,
        )
        self.api = Api(self.desk, self.relay, text)
        own_headers = {"authorization": f"Bearer {config.token}"} if config.token else {}
        self.replicas = Replicas(self.desk, config.peers.split(), own_headers)
        self.api.routes[b"GET", REPLICA_PATH] = self.replicas.answer
        client_s = config.client_ms / 1000
        self.http = HttpServer(
            self.api.handle,
            Limits(head_bytes_max=config.head_bytes_max, body_bytes_max=config.body_bytes_max),
            Timeouts(request_s=client_s, stall_s=client_s),
            config.clients_max,
        )
        worker_headers = {}
        if config.worker_token:
            worker_headers["authorization"] = f"Bearer {config.worker_token}"
        self.prober = Prober(
            self.desk,
            path=config.health_path,
            timeout_s=config.health_timeout_ms / 1000,
            headers=worker_headers,
        )
        self.followed = Followed(self.desk, config.digest_ms / 1000)
        self.pool: PoolSubscriber | None = None
        if config.pool_events:
            self.pool = PoolSubscriber(
                self.desk.brain, config.pool_events, replay=config.pool_replay
            )
        self._followers = [
            Follower(self.desk, parse_source(word), config.discovery_ms / 1000)
            for word in config.discovery.split()
        ]
        for spec in static_specs(config):
            self.desk.seat(spec, "static")
        self._tasks: list[asyncio.Task[Any]] = []
        self._stop = asyncio.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://{Address(self.config.host, self.port)}"

    async def start(self) -> None:
        """Listen and begin to look after workers. Raises TransferError: no such port."""
        self.port = await self.http.listen(self.config.host, self.config.port)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(follower.run()) for follower in self._followers]
        self._tasks += [loop.create_task(self.replicas.follow(url)) for url in self.replicas.peers]
        self._tasks.append(loop.create_task(self._sweep_forever()))
        if self.pool is not None:
            self.pool.start()

    async def drain(self) -> None:
        """Let running answers end, then close."""
        await self.http.drain(self.config.drain_ms / 1000)
        await self.close()

    async def close(self) -> None:
        """Close at once."""
        self.http.close()
        self.prober.close()
        self.relay.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.followed.close()
        if self.pool is not None:
            await self.pool.close()

    def stop(self) -> None:
        self._stop.set()

    async def run(self, ready: Callable[[RouterServer], None]) -> None:
        """Serve until `stop`, then drain."""
        await self.start()
        ready(self)
        await self._stop.wait()
        await self.drain()

    async def _sweep_forever(self) -> None:
        while True:
            now = time.monotonic()
            self.prober.sweep(now)
            self.relay.sweep(now)
            self.http.sweep(now)
            self.desk.brain.tick(now)
            self.replicas.sweep(now)
            await asyncio.sleep(SWEEP_S)


async def _serve(
    config: RouterConfig, ready: Callable[[RouterServer], None], reader: TextReader | None
) -> None:
    router = RouterServer(config, reader)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, router.stop)
    with contextlib.suppress(asyncio.CancelledError):
        await router.run(ready)


def run_router(
    config: RouterConfig,
    ready: Callable[[RouterServer], None],
    reader: TextReader | None = None,
) -> None:
    """The router process, until SIGTERM or Ctrl-C; `reader` is the workers' tokenizer."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, ready, reader))
