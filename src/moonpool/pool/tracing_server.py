"""A master and a node that trace: chosen where `tracing` of their section is on.

The master's spans are of requests, with the span that asked as their parent; what it answers later
(a put that waits) ends its span all the same, with the request. The node's are of the copies that
it fetches from others; what clients read and write at a node moves natively, and is in their spans.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moonpool.core.clock import Clock
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.core.tracing import CARRIED_BYTES_MAX, Attributes, Tracer, open_provider
from moonpool.pool import messages as m
from moonpool.pool.effects import Effect
from moonpool.pool.link import AsyncLink
from moonpool.pool.master import MasterServer
from moonpool.pool.node import NodeServer

if TYPE_CHECKING:
    from moonpool._core import SegmentAgent


class TracedMaster(MasterServer):
    """`provider`: whose spans they are; a process of its own opens one (see core/tracing.py)."""

    def __init__(
        self, config: MasterConfig, clock: Clock | None = None, provider: Any = None
    ) -> None:
        self._provider = provider or open_provider("moonpool-master")
        self._tracer = Tracer(self._provider)
        super().__init__(config, clock)

    def received(self, session: int, envelope: m.Envelope) -> None:
        if not envelope.id:  # what nodes report, and what is told without a question
            super().received(session, envelope)
            return
        name = f"moonpool.master.{type(envelope.body).__name__.lower()}"
        parent = envelope.trace if len(envelope.trace) <= CARRIED_BYTES_MAX else b""
        with self._tracer.span(name, facts(envelope.body), parent=parent, serves=True):
            super().received(session, envelope)

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect.message, m.Failure) and effect.request_id:
                self._failed(effect.message.code)
        super().perform(effects)

    def _fail(self, session: int, request: int, code: str, text: str) -> None:
        self._failed(code)
        super()._fail(session, request, code, text)

    def _failed(self, code: str) -> None:
        self._tracer.current().set_attribute("error.type", code)

    async def stop(self) -> None:
        await super().stop()
        await asyncio.to_thread(self._provider.shutdown)


class TracedNode(NodeServer):
    def __init__(self, config: NodeConfig, provider: Any = None) -> None:
        self._provider = provider or open_provider("moonpool-node")
        self._tracer = Tracer(self._provider)
        super().__init__(config)

    async def _fetch(self, agent: SegmentAgent, link: AsyncLink, order: m.Copy) -> None:
        attributes: Attributes = {"moonpool.node": self.name}
        attributes["moonpool.source"] = order.source.node
        attributes["moonpool.objects"] = len(order.slot) // 4
        with self._tracer.span("moonpool.node.copy", attributes):
            await super()._fetch(agent, link, order)

    async def run(self, ready: Callable[[NodeServer], None] | None = None) -> None:
        try:
            await super().run(ready)
        finally:
            await asyncio.to_thread(self._provider.shutdown)


def facts(message: m.Message) -> Attributes:
    keys = getattr(message, "keys", None)
    return {"moonpool.keys": len(keys.ends) // 4} if isinstance(keys, m.KeyColumn) else {}
