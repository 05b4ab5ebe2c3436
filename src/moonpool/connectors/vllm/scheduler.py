"""The scheduler's side: what of a prompt the pool has, what to load, what to store. No I/O of its
own: the pool is a function that answers or gives up, time is an argument.

    new -> matched (as often as vLLM asks) -> allocated -> planned, step after step -> finished

Rules: a hit never covers the whole prompt; loads begin where vLLM's own blocks end; what failed to
load is not promised again for a while, or vLLM and we would ask each other for ever.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from math import lcm
from typing import Protocol

import msgspec

from moonpool.connectors.vllm.config import Load
from moonpool.connectors.vllm.counters import Counters
from moonpool.connectors.vllm.keys import KeySpaces, block_digests
from moonpool.connectors.vllm.metadata import (
    BlockRun,
    LoadJob,
    Namespace,
    SaveJob,
    StepPlan,
    WorkerReport,
)

Lookup = Callable[[list[bytes]], list[bool] | None]
"""Which of the keys the pool holds, within the deadline; None: it did not say."""

_FAILED_MAX = 65_536
_MEMO_S = 0.25  # a request that waits is asked about in every step
_RESTARTS_MAX = 3  # how often one request's blocks are offered again from the first on
_NULL_BLOCK = 0  # vLLM's placeholder where a sliding window has passed


class EngineRequest(Protocol):
    """What is read of a vLLM request."""

    @property
    def request_id(self) -> str: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def block_hashes(self) -> Sequence[bytes]: ...


class GroupShape(msgspec.Struct, frozen=True):
    """One KV group: tokens of a block, and how many of vLLM's hashes make one block's."""

    block_size: int
    hashes_per_block: int


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Of the configuration, what the scheduler's side goes by."""

    loads: bool = True
    saves: bool = True
    load: Load = "async"
    save_decode: bool = True
    load_tokens_min: int = 0
    failed_block_s: float = 10.0


class Track(msgspec.Struct):
    """A request between its first match and its end."""

    request: EngineRequest
    namespace: Namespace
    computed: int = 0
    """Tokens vLLM had itself when it asked last."""
    known: list[int] = []
    """Leading blocks of each group that the pool has."""
    saved: list[int] = []
    """Leading blocks of each group that are in the pool or on their way there."""
    synchronous: bool = False
    """How its blocks are loaded, by the last answer."""
    asked: bool = False
    asked_at: float = float("-inf")
    restarts: int = 0


class PoolScheduler:
    """Decides for one engine. `namespace_of` says what separates a request from others."""

    def __init__(
        self,
        spaces: KeySpaces,
        groups: Sequence[GroupShape],
        hash_tokens: int,
        lookup: Lookup,
        counters: Counters,
        options: Options,
        namespace_of: Callable[[EngineRequest], Namespace],
    ) -> None:
        self._spaces = spaces
        self._groups = groups
        self._hash_tokens = hash_tokens
        self._align = lcm(*(group.block_size for group in groups))
        self._lookup = lookup
        self._counters = counters
        self._options = options
        self._namespace_of = namespace_of
        self._tracks: dict[str, Track] = {}
        self._loads: list[LoadJob] = []
        self._failed: OrderedDict[tuple[int, bytes], float] = OrderedDict()
        self._failures = 0

    # --- what vLLM asks ---------------------------------------------------------------------------

    def matched(self, request: EngineRequest, computed: int, now: float) -> tuple[int, bool]:
        """Tokens beyond `computed` that the pool has, and whether they come asynchronously.

        Changes nothing but our memory of the answer; may be called in every step."""
        track = self._track(request)
        track.computed = computed
        if not self._options.loads:
            self._counters.add("lookups_skipped", reason="off")
            return 0, False
        limit = self._limit(request)
        if limit <= computed:
            self._counters.add("lookups_skipped", reason="short")
            return 0, False
        if now - track.asked_at > _MEMO_S:
            self._ask(track, now)
        hit = min(limit, self._good_tokens(track, now)) - computed
        if hit <= 0:
            return 0, False
        if hit < self._options.load_tokens_min:
            self._counters.add("lookups_skipped", reason="too_small")
            return 0, False
        track.synchronous = self._synchronous()
        return hit, not track.synchronous

    def allocated(
        self, request: EngineRequest, block_ids: Sequence[Sequence[int]], external_tokens: int
    ) -> None:
        """vLLM gave the request blocks; `external_tokens` of them are to be filled by us."""
        track = self._track(request)
        if not external_tokens:
            return
        self._counters.add("hit_tokens", external_tokens)
        runs = []
        for at, group in enumerate(self._groups):
            start = track.computed // group.block_size
            stop = (track.computed + external_tokens) // group.block_size
            digests = block_digests(request.block_hashes, group.hashes_per_block, start)
            wanted = [
                (block_id, digest)
                for block_id, digest in zip(
                    block_ids[at][start:stop], digests[: stop - start], strict=True
                )
                if block_id != _NULL_BLOCK
            ]
            if wanted:
                runs.append(BlockRun(at, [w[0] for w in wanted], [w[1] for w in wanted]))
        job = LoadJob(request.request_id, track.namespace, runs, track.synchronous)
        self._loads.append(job)

    def plan(
        self,
        scheduled: Iterable[tuple[str, int]],
        block_ids_of: Callable[[str], Sequence[Sequence[int]] | None],
        now: float,
    ) -> StepPlan:
        """The step's jobs. `scheduled`: each request's id and the tokens it has computed after."""
        loads, self._loads = self._loads, []
        saves = []
        if self._options.saves:
            for request_id, computed in scheduled:
                track = self._tracks.get(request_id)
                job = self._save(track, computed, block_ids_of, now) if track else None
                if job is not None:
                    saves.append(job)
        return StepPlan(loads, saves, self._failures)

    def reported(self, report: WorkerReport, now: float) -> None:
        """What the workers told of a step."""
        for name in report.failed:
            self._failed[name] = now + self._options.failed_block_s
            self._failed.move_to_end(name)
        while len(self._failed) > _FAILED_MAX:
            self._failed.popitem(last=False)
        if report.failed or report.failures > self._failures:
            # What plans counted as stored may have been dropped with the step.
            for track in self._tracks.values():
                self._restart(track)
        self._failures = max(self._failures, report.failures)
        for request_id in report.orphans:
            if request_id in self._tracks:
                self._restart(self._tracks[request_id])

    def finished(self, request_id: str) -> None:
        self._tracks.pop(request_id, None)

    def request(self, request_id: str) -> EngineRequest | None:
        track = self._tracks.get(request_id)
        return track.request if track else None

    def __len__(self) -> int:
        """Requests remembered."""
        return len(self._tracks)

    # --- inside -----------------------------------------------------------------------------------

    def _track(self, request: EngineRequest) -> Track:
        track = self._tracks.get(request.request_id)
        if track is None:
            track = Track(request, self._namespace_of(request))
            track.known = [0] * len(self._groups)
            track.saved = [0] * len(self._groups)
            self._tracks[request.request_id] = track
        return track

    def _synchronous(self) -> bool:
        """A step that waits for blocks, layer by layer, is the fastest way for its request, and
        holds up all others that are in it or come meanwhile."""
        load = self._options.load
        return load == "sync" or (load == "auto" and len(self._tracks) == 1)

    def _limit(self, request: EngineRequest) -> int:
        """Tokens a hit can have: whole blocks of all groups, hashed, and one token left over."""
        hashed = len(request.block_hashes) * self._hash_tokens
        return min(hashed, request.num_tokens - 1) // self._align * self._align

    def _ask(self, track: Track, now: float) -> None:
        """How many leading blocks of each group the pool has, on all shards."""
        spaces, hashes = self._spaces, track.request.block_hashes
        shards = spaces.shards()
        keys: list[bytes] = []
        counts = []
        for at, group in enumerate(self._groups):
            digests = block_digests(hashes, group.hashes_per_block)
            counts.append(len(digests))
            for shard in shards:
                keys += spaces.keys(at, shard, track.namespace, digests)
        found = self._lookup(keys) if keys else []
        track.asked_at, track.asked = now, True
        wanted = self._limit(track.request) - track.computed
        self._counters.add("lookup_tokens", max(0, wanted))
        if found is None:
            track.known = [0] * len(self._groups)
            return
        position = 0
        for at, count in enumerate(counts):
            runs = []
            for _ in shards:
                runs.append(_leading(found[position : position + count]))
                position += count
            track.known[at] = min(runs)
            track.saved[at] = max(track.saved[at], track.known[at])

    def _good_tokens(self, track: Track, now: float) -> int:
        """Tokens that the pool has in all groups and that did not fail lately."""
        tokens = []
        for at, group in enumerate(self._groups):
            known = track.known[at]
            if self._failed and known:
                digests = block_digests(track.request.block_hashes, group.hashes_per_block)
                for block, digest in enumerate(digests[:known]):
                    if self._failed.get((at, digest), now) > now:
                        known = block
                        break
            tokens.append(known * group.block_size)
        return min(tokens) // self._align * self._align

    def _save(
        self,
        track: Track,
        computed: int,
        block_ids_of: Callable[[str], Sequence[Sequence[int]] | None],
        now: float,
    ) -> SaveJob | None:
        request = track.request
        if not self._options.save_decode:
            computed = min(computed, request.num_prompt_tokens)
        if not track.asked:
            # All of the prompt was vLLM's own, so nobody asked; most often the pool has it too.
            self._ask(track, now)
        runs, parents = [], []
        block_ids: Sequence[Sequence[int]] | None = None
        for at, group in enumerate(self._groups):
            start = track.saved[at]
            hashed = len(request.block_hashes) // group.hashes_per_block
            stop = min(computed // group.block_size, hashed)
            if stop <= start:
                continue
            block_ids = block_ids or block_ids_of(request.request_id)
            if block_ids is None:
                return None
            track.saved[at] = stop
            ids = list(block_ids[at][start:stop])
            if _NULL_BLOCK in ids or len(ids) < stop - start:
                continue  # a sliding window has left them behind; a chain has no holes
            before = max(0, start - 1)
            digests = block_digests(request.block_hashes, group.hashes_per_block, before)
            parents.append(digests[0] if start else None)
            first = start - before
            runs.append(BlockRun(at, ids, digests[first : first + len(ids)]))
        if not runs:
            return None
        return SaveJob(request.request_id, track.namespace, runs, parents)

    def _restart(self, track: Track) -> None:
        """Offer the request's blocks from the first on; the pool keeps those it has."""
        if track.restarts < _RESTARTS_MAX:
            track.restarts += 1
            track.saved = [0] * len(self._groups)
            track.asked_at = float("-inf")


def _leading(found: Sequence[bool]) -> int:
    """How many are true before the first that is not."""
    return next((at for at, there in enumerate(found) if not there), len(found))
