"""etcd, spoken to over its JSON gateway (every etcd since 3.4 has it on its client port).

No client library is needed. Every call has a deadline and tries the members in turn; nothing here
knows what the keys are for. Blocking: asyncio code calls it in a thread.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self, TypeVar

import msgspec

from moonpool.core.address import EtcdAddress as EtcdAddress
from moonpool.core.address import parse_etcd as parse_etcd
from moonpool.core.clock import Clock, Deadline, SystemClock
from moonpool.core.errors import (
    BadFrame,
    Closed,
    DeadlineExceeded,
    MoonpoolError,
    Unreachable,
)
from moonpool.core.etcd_line import EtcdLine

TIMEOUT_S = 5.0
TRY_S = 1.0  # one member has so long before the next one is asked
ANSWER_BYTES_MAX = 64 << 20
LIMIT = 65_536
_T = TypeVar("_T")


class EtcdPair(NamedTuple):
    """One key as it is. `mod_revision` is the cluster's revision of its last change."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int


class EtcdChange(NamedTuple):
    """One change of a watched key; `value` is empty when it was deleted."""

    key: bytes
    value: bytes
    deleted: bool
    revision: int


class EtcdTxn(NamedTuple):
    """What a transaction did: the pairs are what the keys compared hold when it did not succeed."""

    succeeded: bool
    revision: int
    pairs: list[EtcdPair]


class _Header(msgspec.Struct):
    revision: str = "0"


class _Pair(msgspec.Struct):
    key: str = ""
    value: str = ""
    create_revision: str = "0"
    mod_revision: str = "0"
    lease: str = "0"


class _Range(msgspec.Struct):
    kvs: list[_Pair] = []
    header: _Header = msgspec.field(default_factory=_Header)


class _Lease(msgspec.Struct):
    ID: str = "0"
    TTL: str = "0"


class _Kept(msgspec.Struct):
    result: _Lease = msgspec.field(default_factory=_Lease)


class _Answer(msgspec.Struct):
    response_range: _Range = msgspec.field(default_factory=_Range)


class _Txn(msgspec.Struct):
    header: _Header = msgspec.field(default_factory=_Header)
    succeeded: bool = False
    responses: list[_Answer] = []


class _Change(msgspec.Struct):
    kv: _Pair
    type: str = "PUT"


class _Watched(msgspec.Struct):
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: str = "0"
    events: list[_Change] = []


class _Watch(msgspec.Struct):
    result: _Watched = msgspec.field(default_factory=_Watched)


class EtcdClient:
    """One cluster. Thread-safe, one call at a time; a watch has a connection of its own.

    Calls raise Unreachable (no member answers), DeadlineExceeded, BadFrame (not etcd's answer), and
    Closed after `close`.
    """

    def __init__(
        self,
        address: str | EtcdAddress,
        timeout_s: float = TIMEOUT_S,
        try_s: float = TRY_S,
        clock: Clock | None = None,
    ) -> None:
        self.address = parse_etcd(address) if isinstance(address, str) else address
        self.timeout_s = timeout_s
        self.try_s = try_s
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._at = 0
        self._line: EtcdLine | None = None
        # Of what `close` changes without waiting for a call. The collector may end a watch in it.
        self._guard = threading.RLock()
        self._lines: set[EtcdLine] = set()
        self._closed = False

    def range(
        self,
        key: str,
        *,
        prefix: bool = False,
        limit: int = LIMIT,
        within_s: float | None = None,
    ) -> list[EtcdPair]:
        """The key, or all that begin with it, in order. `within_s`: sooner than `timeout_s`."""
        question: dict[str, object] = {"key": _b64(key), "limit": limit}
        if prefix:
            question["range_end"] = _b64(_after(key))
        found = self._call("/v3/kv/range", question, _Range, within_s)
        return [_pair(pair) for pair in found.kvs]

    def put(self, key: str, value: bytes, *, lease: int = 0) -> None:
        self._call("/v3/kv/put", {"key": _b64(key), "value": _b64(value), "lease": lease}, _Range)

    def delete(self, key: str, *, prefix: bool = False) -> None:
        question: dict[str, object] = {"key": _b64(key)}
        if prefix:
            question["range_end"] = _b64(_after(key))
        self._call("/v3/kv/deleterange", question, _Range)

    def swap(self, unchanged: dict[str, int], puts: dict[str, bytes], *, lease: int = 0) -> EtcdTxn:
        """Put all of `puts` if each key of `unchanged` still has that mod_revision (0: is absent).

        An answer lost on the way leaves open whether it was done: read, then decide.
        """
        compare = [
            {"key": _b64(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision}
            for key, revision in unchanged.items()
        ]
        success = [
            {"request_put": {"key": _b64(key), "value": _b64(value), "lease": lease}}
            for key, value in puts.items()
        ]
        failure = [{"request_range": {"key": _b64(key)}} for key in unchanged]
        question = {"compare": compare, "success": success, "failure": failure}
        done = self._call("/v3/kv/txn", question, _Txn)
        pairs = [] if done.succeeded else [p for r in done.responses for p in r.response_range.kvs]
        return EtcdTxn(done.succeeded, int(done.header.revision), [_pair(pair) for pair in pairs])

    def grant(self, ttl_s: int) -> int:
        """A new lease: keys put under it go when it is not kept alive for `ttl_s`."""
        return int(self._call("/v3/lease/grant", {"TTL": ttl_s}, _Lease).ID)

    def keep_alive(self, lease: int) -> bool:
        """False: the lease is over, and its keys are gone."""
        kept = self._call("/v3/lease/keepalive", {"ID": lease}, _Kept)
        return int(kept.result.TTL) > 0

    def revoke(self, lease: int) -> None:
        self._call("/v3/lease/revoke", {"ID": lease}, _Lease)

    def watch(
        self, key: str, *, prefix: bool = False, revision: int = 0, silence_s: float = 60.0
    ) -> Generator[EtcdChange, None, None]:
        """Changes of the key, or of all that begin with it, from `revision` on (0: from now).

        Ends with DeadlineExceeded after `silence_s` without any, and with Unreachable when the
        member goes or the revision is no longer kept: read the range again, then watch on.
        """
        request: dict[str, object] = {"key": _b64(key), "start_revision": revision}
        if prefix:
            request["range_end"] = _b64(_after(key))
        body = msgspec.json.encode({"create_request": request})
        deadline = Deadline.after(self._clock.monotonic(), self.timeout_s)
        line, answer = self._first_answer("/v3/watch", body, deadline)
        try:
            line.wait_at_most(silence_s)
            while True:
                text = answer.readline(ANSWER_BYTES_MAX)
                if not text:
                    raise Unreachable("etcd ended the watch")
                watched = _decoded(text, _Watch).result
                if watched.canceled:
                    raise Unreachable(
                        f"etcd ended the watch: {watched.cancel_reason or 'compacted'}"
                    )
                for change in watched.events:
                    pair = _pair(change.kv)
                    deleted = change.type == "DELETE"
                    yield EtcdChange(pair.key, pair.value, deleted, pair.mod_revision)
        except MoonpoolError:
            raise
        except TimeoutError:
            raise DeadlineExceeded(
                f"nothing changed below {key!r} within {silence_s:g} s"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"etcd's watch broke: {error}") from None
        finally:
            self._end(line)

    def close(self) -> None:
        """For good. Calls and watches of other threads end too, with Unreachable or Closed."""
        with self._guard:
            self._closed = True
            for line in list(self._lines):
                line.interrupt()
        with self._lock:
            self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # One call: members in turn, within the deadline.

    def _call(
        self, path: str, question: object, kind: type[_T], within_s: float | None = None
    ) -> _T:
        body = msgspec.json.encode(question)
        timeout_s = self.timeout_s if within_s is None else min(self.timeout_s, within_s)
        deadline = Deadline.after(self._clock.monotonic(), timeout_s)
        with self._turn(timeout_s):
            try:
                answer = self._kept_answer(path, body, deadline)
                if answer is None:
                    self._line, response = self._first_answer(path, body, deadline)
                    answer = self._whole(response)
                if self._line is not None and self._line.spent:
                    self._drop()
                return _decoded(answer, kind)
            except MoonpoolError:
                self._drop()
                raise
            except TimeoutError:
                self._drop()
                raise DeadlineExceeded(f"etcd did not answer within {timeout_s:g} s") from None
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                raise Unreachable(f"etcd's answer broke off: {error}") from None
            except BaseException:
                self._drop()
                raise

    @contextmanager
    def _turn(self, timeout_s: float) -> Iterator[None]:
        """One call at a time; another thread's may take longer than this one has."""
        if not self._lock.acquire(timeout=timeout_s):
            raise DeadlineExceeded(f"etcd was not free to be asked within {timeout_s:g} s")
        try:
            yield
        finally:
            self._lock.release()

    def _kept_answer(self, path: str, body: bytes, deadline: Deadline) -> bytes | None:
        """Over the kept connection; None: there is none, or it is no good, begin anew."""
        if self._line is None:
            return None
        try:
            return self._whole(self._line.ask(path, body, self._try_s(deadline)))
        except (OSError, http.client.HTTPException):
            self._drop()
            self._at += 1
            return None

    def _first_answer(
        self, path: str, body: bytes, deadline: Deadline
    ) -> tuple[EtcdLine, http.client.HTTPResponse]:
        """Of the first member that answers; the line is the caller's to end."""
        members: Sequence[tuple[str, int]] = self.address.members
        why = ""
        for _ in range(2 * len(members)):
            host, port = members[self._at % len(members)]
            try_s = self._try_s(deadline)
            line: EtcdLine | None = None
            try:
                line = self._begin(host, port, try_s)
                return line, line.ask(path, body, self._try_s(deadline))
            except (OSError, http.client.HTTPException) as error:
                self._end(line)
                why = f"{host}:{port}: {error or type(error).__name__}"
                self._at += 1
            except BaseException:
                self._end(line)
                raise
        raise Unreachable(f"no etcd member answers ({why})")

    def _begin(self, host: str, port: int, try_s: float) -> EtcdLine:
        self._check_open()
        line = EtcdLine(host, port, self.address.tls, try_s)
        with self._guard:
            self._lines.add(line)
        try:
            self._check_open()  # closed while it connected: `close` did not see it
        except Closed:
            self._end(line)
            raise
        return line

    def _end(self, line: EtcdLine | None) -> None:
        if line is not None:
            with self._guard:
                self._lines.discard(line)
                line.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this client of etcd was closed; make another one")

    def _try_s(self, deadline: Deadline) -> float:
        return min(self.try_s, deadline.check(self._clock.monotonic(), "ask etcd"))

    def _whole(self, response: http.client.HTTPResponse) -> bytes:
        body = response.read(ANSWER_BYTES_MAX + 1)
        if len(body) > ANSWER_BYTES_MAX:
            raise BadFrame(f"an answer of etcd of more than {ANSWER_BYTES_MAX} bytes")
        return body

    def _drop(self) -> None:
        self._end(self._line)
        self._line = None


def _decoded(body: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise BadFrame(f"this is no answer of etcd: {error}") from None


def _pair(pair: _Pair) -> EtcdPair:
    try:
        return EtcdPair(
            base64.b64decode(pair.key, validate=True),
            base64.b64decode(pair.value, validate=True),
            int(pair.create_revision),
            int(pair.mod_revision),
            int(pair.lease),
        )
    except (binascii.Error, ValueError) as error:
        raise BadFrame(f"this is no answer of etcd: {error}") from None


def _b64(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def _after(prefix: str) -> bytes:
    """The first key beyond all that begin with `prefix`; all keys for none."""
    raw = prefix.encode()
    return raw[:-1] + bytes([raw[-1] + 1]) if raw else b"\0"
