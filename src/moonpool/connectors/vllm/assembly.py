"""The two sides put together from vLLM's configuration. Imports vLLM where it must.

Both sides make the same identity from the same configuration, or they would not share keys.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moonpool.connectors.vllm.config import ConnectorConfig
from moonpool.connectors.vllm.counters import Counters
from moonpool.connectors.vllm.events import Removed, Stored
from moonpool.connectors.vllm.identity import (
    EngineView,
    engine_view,
    namespace_of,
    published_as_numbers,
)
from moonpool.connectors.vllm.keys import KeySpaces
from moonpool.connectors.vllm.layout import group_layouts
from moonpool.connectors.vllm.link import PoolLink
from moonpool.connectors.vllm.loader import Loader
from moonpool.connectors.vllm.metadata import Namespace, StepPlan, WorkerReport
from moonpool.connectors.vllm.pool_events import PoolEvents
from moonpool.connectors.vllm.saver import Saver
from moonpool.connectors.vllm.scheduler import GroupShape, Options, PoolScheduler
from moonpool.connectors.vllm.worker import PoolWorker, Received
from moonpool.core.errors import MoonpoolError
from moonpool.pool.connect import client_config, connect

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_LOG = logging.getLogger("vllm.moonpool")  # below vLLM's own, so it goes where that goes


def open_link(config: ConnectorConfig) -> PoolLink:
    """A link to the configured pool, on its way. Raises BadConfig for settings that cannot work."""
    client = client_config(master=config.master or None)
    link = PoolLink(
        lambda: connect(client.master, timeout_s=_CONNECT_S),
        where=client.master,
        retry_s=config.retry_ms / 1000,
        retry_max_s=config.retry_max_ms / 1000,
        log=_LOG,
    )
    link.start(_CONNECT_S)
    return link


_CONNECT_S = 2.0


class SchedulerSide:
    """What MoonpoolConnector does in the scheduler's process."""

    def __init__(
        self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: ConnectorConfig
    ) -> None:
        view = engine_view(vllm_config, kv_cache_config, config)
        self.counters = Counters()
        self._link = open_link(config)
        self._lookup_timeout_s = config.lookup_timeout_ms / 1000
        spaces = KeySpaces(view.identity)
        self._pool = PoolScheduler(
            spaces,
            [GroupShape(g.block_size, g.block_size // view.hash_tokens) for g in view.groups],
            view.hash_tokens,
            self._lookup,
            self.counters,
            Options(
                loads=view.loads,
                saves=view.saves,
                load=view.load,
                save_decode=config.save_decode,
                load_tokens_min=config.load_tokens_min,
                failed_block_s=config.failed_block_ms / 1000,
            ),
            namespace_of,
        )
        self._events: PoolEvents | None = None
        if view.events:
            numbers = published_as_numbers()
            self._events = PoolEvents(spaces, view.hash_tokens, self._link, as_numbers=numbers)
        _LOG.info("Moonpool: %s", view.text)

    def matched(self, request: Any, computed: int, now: float) -> tuple[int, bool]:
        return self._pool.matched(request, computed, now)

    def allocated(
        self, request: Any, block_ids: Sequence[Sequence[int]], external_tokens: int
    ) -> None:
        self._pool.allocated(request, block_ids, external_tokens)

    def plan(self, scheduled: Any, block_ids_of: Callable[[str], Any], now: float) -> StepPlan:
        plan = self._pool.plan(scheduled, block_ids_of, now)
        if self._events is not None:
            for job in plan.saves:
                self._events.planned(job, self._pool.request(job.request_id))
        return plan

    def reported(self, report: WorkerReport, now: float) -> None:
        self._pool.reported(report, now)
        if self._events is not None:
            self._events.stored(report.stored)

    def finished(self, request_id: str) -> None:
        self._pool.finished(request_id)

    def take_events(self) -> list[Stored | Removed]:
        return self._events.take() if self._events is not None else []

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
        self._link.close()

    def _lookup(self, keys: list[bytes]) -> list[bool] | None:
        pool = self._link.pool()
        if pool is None:
            self.counters.add("lookups_skipped", reason="away")
            return None
        try:
            found = pool.exists(keys, timeout_s=self._lookup_timeout_s)
        except MoonpoolError as error:
            self.counters.add("lookup_failures")
            self._link.failed(error)
            return None
        self._link.answered()
        return found


class WorkerSide:
    """What MoonpoolConnector does in a worker's process; asleep until caches are registered."""

    def __init__(
        self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: ConnectorConfig
    ) -> None:
        self._view: EngineView = engine_view(vllm_config, kv_cache_config, config)
        self._config = config
        self._spaces = KeySpaces(self._view.identity)
        self.counters = Counters()
        self._link = open_link(config)
        self._worker: PoolWorker | None = None
        self._bad_blocks: set[int] = set()

    def register(self, caches: Mapping[str, Any]) -> None:
        view, config = self._view, self._config
        layouts = group_layouts([g.layers for g in view.groups], caches, view.blocks)
        loader = Loader(
            layouts,
            self._keys_of,
            self._link,
            self.counters,
            buffer_bytes=config.load_buffer,
            threads=config.load_threads,
            timeout_s=config.load_timeout_ms / 1000,
            log=_LOG,
        )
        saver = Saver(
            layouts,
            self._keys_of,
            self._link,
            self.counters,
            buffer_bytes=config.save_buffer,
            timeout_s=config.save_timeout_ms / 1000,
            replicas=config.replicas,
            saves=view.shard_saves,
            log=_LOG,
        )
        sizes = [group.block_size for group in view.groups]
        self._worker = PoolWorker(layouts, loader, saver, self.counters, sizes)
        _LOG.info(
            "Moonpool: blocks of %s bytes", " and ".join(str(x.object_bytes) for x in layouts)
        )

    def bind(self, plan: StepPlan) -> None:
        if self._worker is not None:
            self._worker.bind(plan)

    def start_loads(self) -> None:
        if self._worker is not None:
            self._worker.start_loads()

    def wait_for_layer(self, name: str) -> None:
        if self._worker is not None:
            self._worker.wait_for_layer(name)

    def layer_done(self, name: str) -> None:
        if self._worker is not None:
            self._worker.layer_done(name)

    def wait_for_saves(self) -> None:
        if self._worker is not None:
            self._worker.wait_for_saves()

    def received(self, ended_requests: set[str]) -> Received:
        if self._worker is None:
            return Received(set(), set(), set())
        received = self._worker.received(ended_requests)
        self._bad_blocks |= received.bad_blocks
        return received

    def take_bad_blocks(self) -> set[int]:
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def report(self) -> WorkerReport | None:
        return self._worker.report() if self._worker is not None else None

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._link.close()

    def _keys_of(self, group: int, namespace: Namespace, digests: Sequence[bytes]) -> list[bytes]:
        return self._spaces.keys(group, self._view.shard, namespace, digests)
