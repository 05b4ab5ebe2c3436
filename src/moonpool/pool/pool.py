"""The public face: one class for pools of processes and for the embedded pool."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Literal, overload

import numpy as np

from moonpool.core.sections import ClientConfig
from moonpool.pool import operations
from moonpool.pool.client_state import Placement
from moonpool.pool.flusher import Flusher
from moonpool.pool.inputs import (
    Key,
    Pin,
    as_key,
    as_key_column,
    as_keys,
    as_options,
    as_prefix,
    as_puts,
    as_replicas,
    as_sizes,
    as_target,
    as_targets,
    refuse_references,
)
from moonpool.pool.operations import EventBatch
from moonpool.pool.pins import PinBudget
from moonpool.pool.ports import Buffer, Status
from moonpool.pool.protocol_put import store
from moonpool.pool.protocol_session import abort_forgotten
from moonpool.pool.ranges import Ranges
from moonpool.pool.results import (
    Answers,
    Bools,
    Hit,
    Miss,
    ObjectInfo,
    PrefixMatch,
    PutResult,
    PutResults,
    RemoveStatus,
    RemoveStatuses,
)
from moonpool.pool.session_state import WriteState
from moonpool.pool.sessions import ReadSession, WriteSession
from moonpool.pool.shell import Shell
from moonpool.pool.upkeep import Upkeep
from moonpool.pool.view import View, copied_view, pinned_view

IN_FLIGHT_WAIT_S = 1.0  # how long a put waits for another writer of its key, unless told


class Pool(Ranges, Upkeep):
    """A pool of KV objects. Keys are str or bytes (1 to 1,024 bytes); values anything contiguous
    with the buffer protocol. Made by `moonpool.connect` or `Pool.local`; close it, or use `with`.

    Every call takes `timeout_s` (default: the configuration's `timeout_ms`). A miss is an answer,
    not an error; what raises is bad input, and a put, removal or listing that could not be done.
    Thread-safe. Not usable in a forked child.
    """

    def __init__(self, shell: Shell, config: ClientConfig) -> None:
        self._shell = shell
        self._state = shell.state
        self._timeout_s = config.timeout_ms / 1000
        self._verify = config.verify
        self._pins = PinBudget(config.pinned_bytes_max)
        self._flush_s = config.touch_flush_ms / 1000
        self._flusher = Flusher(self._flush_due, self._flush_s)
        _POOLS.add(self)

    @staticmethod
    def local(memory: str | int = "1GiB", *, slots: int = 0, headroom: str | int = "auto") -> Pool:
        """An embedded pool: same calls, no processes. Its memory ends with this process."""
        from moonpool.pool.local import local_pool

        return local_pool(memory, slots=slots, headroom=headroom)

    # --- writing ----------------------------------------------------------------------------------

    def put(
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
        """Store one object. A committed key is left as it is (status exists) unless `replace`.

        Raises PoolFull, ObjectTooLarge, ParentMissing, AttemptLost, Unreachable, NotReady and
        BadInput; nothing is left half-written. A key that another writer holds is waited for
        `wait_s`, then answered with status in_flight.
        """
        result = self.put_many(
            [key],
            [value],
            replicas=replicas,
            min_replicas=min_replicas,
            parents=None if parent is None else [parent],
            pin=pin,
            ttl_s=ttl_s,
            replace=replace,
            wait_s=wait_s,
            timeout_s=timeout_s,
        )[0]
        return result.raise_for_status(as_key(key))

    def put_many(
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
        """Store a batch; one result per key, nothing raised for what the pool could not do.

        With parents="chain" the items are one prefix chain under `parent`: what is stored of it is
        a contiguous prefix (no holes), whatever happens.
        """
        puts = as_puts(keys, values, parents, parent)
        options = as_options(replicas, min_replicas, pin, ttl_s, parents, replace)
        if not puts:
            return []
        return self._shell.run(
            lambda context: store(context, puts, options, wait_s=wait_s), self._timeout(timeout_s)
        )

    def write_session(
        self,
        keys: Sequence[Key],
        sizes: Sequence[int],
        *,
        layers: int = 1,
        replicas: int = 1,
        min_replicas: int | None = None,
        parents: Sequence[Key | None] | Literal["chain"] | None = None,
        parent: Key | None = None,
        timeout_s: float | None = None,
    ) -> WriteSession:
        """Write objects piece by piece (layer by layer); committed when the `with` block ends well,
        aborted when it raises. See WriteSession."""
        copies = as_replicas(replicas, min_replicas)
        state = WriteState(
            as_keys(keys), as_sizes(sizes), copies, layers=layers, parents=parents, parent=parent
        )
        return WriteSession(self._shell, state, self._timeout(timeout_s))

    # --- reading ----------------------------------------------------------------------------------

    def get(self, key: Key, *, timeout_s: float | None = None) -> bytes | None:
        """The object's bytes (CRC verified unless configured otherwise), or None: a miss."""
        key = as_key(key)
        placement = self._state.cache.get(key)
        if placement is not None:
            replica = placement.replicas[0]
            data = replica.port.read_bytes(replica.slot, replica.generation, self._verify)
            if not isinstance(data, int):
                self._state.touches.read(placement, self._shell.now)
                return data
        result = self._fetch([key], None, timeout_s)[0]
        return result.data if isinstance(result, Hit) else None

    def get_into(self, key: Key, buffer: Buffer, *, timeout_s: float | None = None) -> int | None:
        """Copy the object into `buffer` (at least as large); its size in bytes, or None: a miss.

        After a miss the buffer's content is undefined. A buffer that is too small is BadSize.
        """
        key = as_key(key)
        placement = self._state.cache.get(key)
        if placement is not None:
            replica = placement.replicas[0]
            if isinstance(buffer, np.ndarray):
                refuse_references(buffer)
            try:
                size = replica.port.read_one(replica.slot, replica.generation, buffer, self._verify)
            except (BufferError, TypeError, ValueError):
                size, buffer = -1, as_target(buffer)  # says what is wrong with it
            if size >= 0:
                self._state.touches.read(placement, self._shell.now)
                return size
        result = self.get_many_into([key], [buffer], timeout_s=timeout_s)[0]
        if isinstance(result, Hit):
            return result.size
        result.raise_for_buffer(key)
        return None

    def get_many(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> Answers:
        """One Hit (with `data`) or Miss (with its reason) per key."""
        return self._fetch(as_keys(keys), None, timeout_s)

    def get_many_into(
        self, keys: Sequence[Key], buffers: Sequence[Buffer], *, timeout_s: float | None = None
    ) -> Answers:
        """Copy each object into its buffer; one Hit (with `size`) or Miss per key."""
        encoded = as_keys(keys)
        return self._fetch(encoded, as_targets(buffers, len(encoded)), timeout_s)

    def view(self, key: Key, *, verify: bool = False, timeout_s: float | None = None) -> View:
        """Zero-copy read-only view on the same host, a verified copy elsewhere. See View."""
        key = as_key(key)
        for fresh in (False, True):
            placement = self._place(key, fresh, timeout_s)
            if isinstance(placement, Miss):
                return copied_view(placement)
            view = pinned_view(placement, self._pins, verify)
            if isinstance(view, View):
                self._state.touches.read(placement, self._shell.now)
                return view
            if view != -1 - Status.MOVED:
                break
            self._state.forget(key, placement)
        return copied_view(self._fetch([key], None, timeout_s)[0])

    def view_many(
        self, keys: Sequence[Key], *, timeout_s: float | None = None
    ) -> Sequence[View | None]:
        """Of each object that lies here in one piece; None for every other. No CRC is checked."""
        return self._shell.run(
            lambda context: operations.local_views(context, as_keys(keys), self._pins),
            self._timeout(timeout_s),
        )

    def read_session(
        self, keys: Sequence[Key], *, layers: int = 1, timeout_s: float | None = None
    ) -> ReadSession:
        """Read objects piece by piece (layer by layer), leased meanwhile. See ReadSession."""
        return ReadSession(
            self._shell, as_keys(keys), layers=layers, timeout_s=self._timeout(timeout_s)
        )

    @overload  # text is a sequence of text, too: the first that fits is meant
    def exists(  # type: ignore[overload-overlap]
        self, key: str | bytes, *, timeout_s: float | None = None
    ) -> bool: ...

    @overload
    def exists(self, key: Sequence[Key], *, timeout_s: float | None = None) -> Bools: ...

    def exists(
        self, key: Key | Sequence[Key], *, timeout_s: float | None = None
    ) -> bool | list[bool]:
        """Whether a key, or each of several, is committed and readable. Extends no life."""
        single = isinstance(key, str | bytes)
        keys = as_key_column([key] if isinstance(key, str | bytes) else key)
        found = self._shell.run(
            lambda context: operations.exists(context, keys), self._timeout(timeout_s)
        )
        return found[0] if single else found

    def match_prefix(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> PrefixMatch:
        """The longest leading run of `keys` that is committed, with its nodes, in one call."""
        encoded = as_keys(keys)
        return self._shell.run(
            lambda context: operations.match_prefix(context, encoded), self._timeout(timeout_s)
        )

    @overload
    def remove(  # type: ignore[overload-overlap]
        self, key: str | bytes, *, timeout_s: float | None = None
    ) -> RemoveStatus: ...

    @overload
    def remove(self, key: Sequence[Key], *, timeout_s: float | None = None) -> RemoveStatuses: ...

    def remove(
        self, key: Key | Sequence[Key], *, timeout_s: float | None = None
    ) -> RemoveStatus | list[RemoveStatus]:
        """Remove a key, or several. Never waits for open views: they keep their bytes."""
        single = isinstance(key, str | bytes)
        keys = [as_key(key)] if isinstance(key, str | bytes) else as_keys(key)
        timeout = self._timeout(timeout_s)
        statuses = self._shell.run(
            lambda context: operations.remove(context, keys, timeout), timeout
        )
        return statuses[0] if single else statuses

    def remove_prefix(self, prefix: Key, *, timeout_s: float | None = None) -> int:
        """Remove every object whose key starts with `prefix`; how many."""
        encoded = as_key(prefix)
        timeout = self._timeout(timeout_s)
        return self._shell.run(
            lambda context: operations.remove_prefix(context, encoded, timeout), timeout
        )

    def list(
        self, prefix: Key = b"", *, page: int = 1000, timeout_s: float | None = None
    ) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in no order; changes meanwhile may or may not
        show."""
        encoded = as_prefix(prefix)
        cursor = 0
        while cursor >= 0:
            objects, cursor = self._shell.run(
                lambda context, at=cursor: operations.list_objects(context, encoded, at, page),  # type: ignore[misc]
                self._timeout(timeout_s),
            )
            yield from objects

    def stat(self, *, timeout_s: float | None = None) -> dict[str, object]:
        """The master's counters (see docs/operations.md)."""
        return self._shell.run(operations.stat, self._timeout(timeout_s))

    def events(
        self,
        position: tuple[int, int] = (0, 0),
        *,
        limit: int = 1000,
        wait_s: float = 0.0,
        timeout_s: float | None = None,
    ) -> EventBatch:
        """Events after `position` (term, sequence), waiting up to `wait_s` for the first."""
        return self._shell.run(
            lambda context: operations.events(context, position, limit, wait_s),
            self._timeout(timeout_s),
        )

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Report reads for recency now instead of with the next request."""
        self._shell.run(operations.flush, self._timeout(timeout_s))

    def close(self) -> None:
        self._flusher.close()
        self._shell.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- inside -----------------------------------------------------------------------------------

    def _flush_due(self) -> None:
        """What is to be done from time to time, by the flusher's thread."""
        state, timeout_s = self._state, min(1.0, self._timeout_s)
        if state.to_tell(self._shell.now(), self._flush_s):
            self.flush(timeout_s=timeout_s)
        if state.forgotten:
            self._shell.run(abort_forgotten, timeout_s)

    def _place(self, key: bytes, fresh: bool, timeout_s: float | None) -> Placement | Miss:
        cached = self._state.cache.get(key)
        if cached is not None and not fresh:
            return cached
        return self._shell.run(
            lambda context: operations.place(context, key, fresh), self._timeout(timeout_s)
        )

    def _fetch(
        self, keys: Sequence[bytes], buffers: Sequence[Buffer] | None, timeout_s: float | None
    ) -> Answers:
        if not keys:
            return []
        return self._shell.run(
            lambda context: operations.get_many(context, keys, buffers, self._verify),
            self._timeout(timeout_s),
        )

    def _timeout(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()


def _forget_placements() -> None:
    """In a forked child: its parent's mappings are not its own, so every call is to say Closed."""
    for pool in list(_POOLS):
        pool._state.cache.clear()


os.register_at_fork(after_in_child=_forget_placements)
