"""The snapshot's shell: the file read at the start, written now and then and at the end, and the
pieces that a restart takes in between other work. It decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from moonpool.core.errors import BadFrame, Corrupt
from moonpool.pool.master_links import LinkState
from moonpool.pool.snapshot.saved import Saved
from moonpool.pool.snapshot.writer import frames

if TYPE_CHECKING:
    from moonpool.pool.master import MasterServer

log = logging.getLogger("moonpool.master")


class SnapshotKeeper:
    """One master's snapshot file."""

    def __init__(self, server: MasterServer) -> None:
        self._server = server
        self._path = Path(server.config.snapshot)
        self._descriptor = -1
        self._running: asyncio.Task[None] | None = None
        self._step: asyncio.Handle | None = None
        self._ending = asyncio.Event()
        self._written: tuple[int, int] | None = None  # what the catalog was when it was written

    # Restart.

    def load(self) -> Saved | None:
        """The last snapshot; None: there is none that could be read."""
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("snapshot %s: %s; the nodes tell all", self._path, error.strerror)
            return None
        try:
            size = os.fstat(self._descriptor).st_size
            saved = Saved(self._read, size)
        except (BadFrame, Corrupt, OSError) as error:
            log.warning("snapshot %s is ignored: %s; the nodes tell all", self._path, error)
            self._close_file()
            return None
        age_s = (self._server.clock.wall_ms() - saved.head.wall_ms) / 1000
        log.info("snapshot %s: %d segments, %.0f s ago", self._path, len(saved), age_s)
        return saved

    def _read(self, at: int, length: int) -> bytes:
        """Raises Corrupt: a disk that does not give it back has not kept it."""
        try:
            return os.pread(self._descriptor, length, at)
        except OSError as error:
            raise Corrupt(f"{length} bytes at {at}: {error.strerror}") from None

    def look(self) -> None:
        """After each message: there may be something to be taken in."""
        if self._step is None and self._server.machine.restoring:
            self._step = asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        self._step = None
        server = self._server
        server.perform(server.machine.restore(server.clock.monotonic(), server.clock.wall_ms()))
        self.look()

    def _close_file(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # Writing.

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._write_forever())

    async def close(self) -> None:
        """The last one, of what the master knew at its end."""
        self._ending.set()
        if self._running is not None:
            await self._running
        await self._write()
        if self._step is not None:
            self._step.cancel()
        self._close_file()

    async def _write_forever(self) -> None:
        while not self._ending.is_set():
            with suppress(TimeoutError):
                interval_s = self._server.config.snapshot_interval_s
                await asyncio.wait_for(self._ending.wait(), interval_s)
                return
            await self._write()

    async def _write(self) -> None:
        """Unless the catalog is as it was, or not all of it is here."""
        machine = self._server.machine
        now = (machine.catalog.segments.changes.count, machine.counts.reads)
        if machine.recovering or machine.restoring or now == self._written:
            return
        if not any(link.state is LinkState.LIVE for link in machine.nodes.links):
            return  # the one that is there knows more
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            await self._write_to(beside)
        except OSError as error:
            log.warning("snapshot %s was not written: %s", self._path, error.strerror)
            return
        finally:
            beside.unlink(missing_ok=True)
        self._written = now
        machine.nodes.restoring.forget()
        if not machine.nodes.restoring.needed:
            self._close_file()

    async def _write_to(self, beside: Path) -> None:
        """Piece by piece: others are answered in between, and the disk is waited for in a
        thread. A name is given to it only when all of it is on the disk."""
        machine, wall_ms = self._server.machine, self._server.clock.wall_ms()
        await asyncio.to_thread(self._path.parent.mkdir, 0o700, True, True)
        mode = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(beside, mode, 0o600), "wb") as file:
            for frame in frames(machine.catalog, machine.nodes.links, wall_ms):
                await asyncio.to_thread(file.write, frame)
            await asyncio.to_thread(file.flush)
            await asyncio.to_thread(os.fsync, file.fileno())
        await asyncio.to_thread(os.replace, beside, self._path)
        await asyncio.to_thread(_flush_names, self._path.parent)


def _flush_names(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
