"""Saving: layer by layer out of the engine while it computes, then to the pool behind its back.

Who may read the engine's blocks: the staging thread, between the end of a layer's attention and the
end of `finish_step`. After that the engine may reuse them, and only slabs are read. The pool is
spoken to by one other thread, so a pool that hangs costs memory up to a limit and never a step.
Blocks are put whole, not through a write session: the copy into the pool computes the CRC on its
way, and nothing may become visible before the step's loads are known to have been good.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from moonpool.connectors.vllm.counters import Counters
from moonpool.connectors.vllm.layout import GroupLayout
from moonpool.connectors.vllm.link import PoolLink
from moonpool.connectors.vllm.loader import KeysOf
from moonpool.connectors.vllm.metadata import BlockRun, Namespace, SaveJob
from moonpool.connectors.vllm.staging import U8, Slabs
from moonpool.core.errors import MoonpoolError
from moonpool.pool.results import PutResult, PutStatus

_DROPS = {
    PutStatus.PARENT_MISSING: "orphan",
    PutStatus.FULL: "full",
    PutStatus.QUOTA: "full",
    PutStatus.THROTTLED: "full",
    PutStatus.TOO_LARGE: "full",
    PutStatus.IN_FLIGHT: "in_flight",
    PutStatus.UNREACHABLE: "away",
    PutStatus.RECOVERING: "away",
}


class Piece:
    """Consecutive blocks of one request in one slab. `parent`: the digest before the first."""

    __slots__ = ("namespace", "objects", "parent", "request_id", "run", "slab", "staged")

    def __init__(
        self,
        request_id: str,
        namespace: Namespace,
        run: BlockRun,
        parent: bytes | None,
        slab: U8,
        size: int,
    ) -> None:
        self.request_id = request_id
        self.namespace = namespace
        self.run = run
        self.parent = parent
        self.slab = slab
        self.objects = [slab[at * size : (at + 1) * size] for at in range(len(run))]
        self.staged: set[int] = set()  # layers


class Saver:
    """One step at a time: `begin`, `layer_done` for each layer, `finish_step`."""

    def __init__(
        self,
        layouts: Sequence[GroupLayout],
        keys_of: KeysOf,
        link: PoolLink,
        counters: Counters,
        *,
        buffer_bytes: int,
        timeout_s: float,
        replicas: int,
        saves: bool = True,
        log: logging.Logger,
    ) -> None:
        self._layouts = layouts
        self._keys_of = keys_of
        self._link = link
        self._counters = counters
        self._timeout_s = timeout_s
        self._replicas = replicas
        self._saves = saves
        self._log = log
        self._slabs = Slabs(max(layout.object_bytes for layout in layouts), buffer_bytes)
        self._pieces: list[Piece] = []
        self._copies: list[Future[None]] = []
        self._stager = ThreadPoolExecutor(1, thread_name_prefix="moonpool-stage")
        self._queue: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._orphans: set[str] = set()
        self._stored: list[bytes] = []
        self._writer = threading.Thread(target=self._write, name="moonpool-save", daemon=True)
        self._writer.start()

    def begin(self, jobs: Sequence[SaveJob]) -> None:
        """What this step makes whole. Without room or pool it is dropped, the tail first."""
        for job in jobs if self._saves else ():
            for run, parent in zip(job.runs, job.parents, strict=True):
                self._begin_run(job, run, parent)

    def layer_done(self, name: str) -> None:
        """The engine has computed this layer of the step."""
        mine = [
            (piece, self._layouts[piece.run.group].index[name])
            for piece in self._pieces
            if name in self._layouts[piece.run.group].index
        ]
        if mine:
            self._copies.append(self._stager.submit(_stage, self._layouts, mine))

    def finish_step(self, good: bool) -> None:
        """Returns when no block of the engine is read any more. Not `good`: nothing is stored."""
        for copy in self._copies:
            copy.result()
        self._copies.clear()
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            if not good:
                self._drop(piece, "failed_load")
                continue
            for layer in range(len(self._layouts[piece.run.group])):
                if layer not in piece.staged:  # vLLM did not call for this layer
                    _stage(self._layouts, [(piece, layer)])
            self._queue.put(piece)

    def take_orphans(self) -> tuple[str, ...]:
        """Requests of which the pool lacks an earlier block, since the last call."""
        with self._lock:
            orphans, self._orphans = self._orphans, set()
        return tuple(sorted(orphans))

    def take_stored(self) -> tuple[bytes, ...]:
        """Digests of the first group that the pool holds now, since the last call."""
        with self._lock:
            stored, self._stored = self._stored, []
        return tuple(stored)

    def close(self) -> None:
        """What is on its way is stored first, within one save's deadline."""
        self._stager.shutdown()
        self._queue.put(None)
        self._writer.join(self._timeout_s)

    def _begin_run(self, job: SaveJob, run: BlockRun, parent: bytes | None) -> None:
        if self._link.pool() is None:
            self._counters.add("save_dropped_blocks", len(run), reason="away")
            return
        object_bytes = self._layouts[run.group].object_bytes
        size = self._slabs.objects(object_bytes)
        for at in range(0, len(run), size):
            slab = self._slabs.take()
            if slab is None:
                self._counters.add("save_dropped_blocks", len(run) - at, reason="buffer")
                return
            part = BlockRun(run.group, run.block_ids[at : at + size], run.digests[at : at + size])
            before = run.digests[at - 1] if at else parent
            self._pieces.append(
                Piece(job.request_id, job.namespace, part, before, slab, object_bytes)
            )

    def _drop(self, piece: Piece, reason: str) -> None:
        self._counters.add("save_dropped_blocks", len(piece.run), reason=reason)
        self._slabs.give(piece.slab)

    # --- the writing thread -----------------------------------------------------------------------

    def _write(self) -> None:
        while (piece := self._queue.get()) is not None:
            try:
                self._put(piece)
            except MoonpoolError as error:
                self._link.failed(error)
                self._counters.add("save_dropped_blocks", len(piece.run), reason="away")
            except Exception:
                self._log.exception("Moonpool: storing blocks of %s failed", piece.request_id)
                self._counters.add("save_dropped_blocks", len(piece.run), reason="other")
            finally:
                self._slabs.give(piece.slab)

    def _put(self, piece: Piece) -> None:
        pool = self._link.pool()
        run, size = piece.run, self._layouts[piece.run.group].object_bytes
        if pool is None:
            self._counters.add("save_dropped_blocks", len(run), reason="away")
            return
        named = run.digests if piece.parent is None else [piece.parent, *run.digests]
        keys = self._keys_of(run.group, piece.namespace, named)
        parent, keys = (None, keys) if piece.parent is None else (keys[0], keys[1:])
        results = pool.put_many(
            keys,
            piece.objects,
            parents="chain",
            parent=parent,
            replicas=self._replicas,
            min_replicas=1,
            timeout_s=self._timeout_s,
        )
        self._count(piece, results, size)

    def _count(self, piece: Piece, results: Sequence[PutResult], size: int) -> None:
        kept: list[bytes] = []
        for result, digest in zip(results, piece.run.digests, strict=True):
            if result.status is PutStatus.STORED:
                self._counters.add("saved_blocks")
                self._counters.add("saved_bytes", size)
            elif result.status is PutStatus.EXISTS:
                self._counters.add("save_existing_blocks")
            else:
                reason = _DROPS.get(result.status, "other")
                self._counters.add("save_dropped_blocks", reason=reason)
            if result.ok:
                kept.append(digest)
        worst = {result.status for result in results}
        if PutStatus.UNREACHABLE in worst:
            self._link.failed(next(r.text for r in results if not r.ok) or "unreachable")
        with self._lock:
            if piece.run.group == 0:
                self._stored += kept
            if PutStatus.PARENT_MISSING in worst:
                self._orphans.add(piece.request_id)


def _stage(layouts: Sequence[GroupLayout], mine: Sequence[tuple[Piece, int]]) -> None:
    for piece, layer in mine:
        layouts[piece.run.group].gather(layer, piece.run.block_ids, piece.objects)
        piece.staged.add(layer)
