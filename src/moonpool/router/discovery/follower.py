"""Keeps the desk's workers those that a source finds."""

from __future__ import annotations

import asyncio
import logging

from moonpool.core.errors import MoonpoolError
from moonpool.router.discovery.base import Source, changes
from moonpool.router.service.desk import Desk
from moonpool.router.service.specs import WorkerSpec

log = logging.getLogger("moonpool.router")


class Follower:
    """One source; what it cannot tell at the moment stays as it was."""

    def __init__(self, desk: Desk, source: Source, interval_s: float) -> None:
        self._desk = desk
        self._source = source
        self._interval_s = interval_s
        self._known: dict[str, WorkerSpec] = {}
        self._said = ""

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._interval_s)

    async def look(self) -> None:
        """Look once."""
        try:
            found = await self._source.look()
        except MoonpoolError as error:
            self._say(f"discovery by {self._source.name}: {error}")
            return
        self._said = ""
        change = changes(self._known, found)
        for name in change.gone:
            del self._known[name]
            self._desk.unseat(name)
        for spec in change.come:
            try:
                self._desk.seat(spec, self._source.name)
            except MoonpoolError as error:
                self._say(f"discovery by {self._source.name}: {error}")
            else:
                self._known[spec.worker.id] = spec

    def _say(self, text: str) -> None:
        """Once, not every few seconds."""
        if text != self._said:
            log.warning("%s", text)
            self._said = text
