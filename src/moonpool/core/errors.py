"""Every error Moonpool raises on purpose, in one tree. Catch a branch, not a message.

MoonpoolError
├── BadInput (ValueError)
│   ├── BadKey
│   ├── BadSize
│   ├── BadDuration
│   ├── BadTrace
│   ├── BadModel
│   ├── BadRequest
│   └── BadConfig
├── PoolError
│   ├── PoolFull
│   ├── QuotaExceeded
│   ├── Throttled
│   ├── ObjectTooLarge
│   ├── ParentMissing
│   ├── AttemptLost
│   ├── PrefixGone
│   ├── NotReady
│   └── NotLeader
├── TransferError
│   ├── Unreachable (ConnectionError)
│   ├── DeadlineExceeded (TimeoutError)
│   ├── Refused
│   ├── LayoutMismatch
│   ├── ProtocolMismatch
│   ├── BadFrame
│   ├── Corrupt
│   ├── Cancelled
│   ├── Closed
│   ├── TooManyOps
│   └── PeerRestarted
├── SegmentError
│   ├── SegmentLocked
│   ├── SegmentDamaged
│   ├── SegmentSpace
│   └── RegisterRefused
├── RouterError
│   ├── NoWorker
│   ├── WorkersBusy
│   └── RequestTooLarge
├── CacheError
│   ├── OutOfPages
│   └── LeaseReleased
├── EngineError
│   ├── EngineBusy
│   └── EngineStopped
└── MissingExtra (ImportError)

A message says what happened, with which values, and what to do next. A miss is not an error: a
get answers with a miss and its reason.
"""

import difflib
import re
from collections.abc import Iterable
from typing import ClassVar


class MoonpoolError(Exception):
    """Root of the tree.

    `code` is the stable name an error has on the wire and in `--json` output (snake case of the
    class name). `retryable` says that the same call may succeed later with nothing changed.
    """

    code: ClassVar[str] = "moonpool_error"
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


class BadInput(MoonpoolError, ValueError):
    """The caller gave something that can never work."""


class BadKey(BadInput):
    """A key that is empty, too long or of the wrong type."""


class BadSize(BadInput):
    """A size that is malformed, negative or over a limit."""


class BadDuration(BadInput):
    """A duration that is malformed, negative or not finite."""


class BadTrace(BadInput):
    """A trace file that does not fit its format; the message names the line."""


class BadModel(BadInput):
    """Weights or a model configuration that cannot be used; the message says what to do."""


class BadRequest(BadInput):
    """An HTTP request that cannot be served as it is; `status` is the answer's."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class BadConfig(BadInput):
    """An unknown setting, or a value that a setting does not take."""


class PoolError(MoonpoolError):
    """The pool understood and said no."""


class PoolFull(PoolError):
    """No space within the deadline; nothing was written."""

    retryable = True


class QuotaExceeded(PoolError):
    """The tenant's quota does not take the object, and nothing of its own may go for it."""

    retryable = True


class Throttled(PoolError):
    """The tenant's turn to write did not come within the deadline; nothing was written."""

    retryable = True


class ObjectTooLarge(PoolError):
    """The object cannot fit even into an empty pool."""


class ParentMissing(PoolError):
    """The named parent is neither committed nor earlier in the same batch."""


class AttemptLost(PoolError):
    """The put's reservation expired or was aborted before its commit; nothing became visible."""

    retryable = True


class PrefixGone(PoolError):
    """A sparse prefix was evicted or removed, or its memory reused, under its reader: open it
    again, or compute it anew."""

    retryable = True


class NotReady(PoolError):
    """The master is still rebuilding its catalog, or no node has joined yet."""

    retryable = True


class NotLeader(PoolError):
    """This master stands by, or its rule has ended; another one leads, or will soon."""

    retryable = True


class TransferError(MoonpoolError):
    """Bytes did not get from one process to another."""


class Unreachable(TransferError, ConnectionError):
    """Nobody answers at the address, or the connection broke."""

    retryable = True


class DeadlineExceeded(TransferError, TimeoutError):
    """The call's deadline passed before it was over."""

    retryable = True


class Refused(TransferError):
    """The peer does not let us in: wrong token, wrong user or wrong trust domain."""


class LayoutMismatch(TransferError):
    """Two engines lay their KV memory out in ways that cannot be mapped; the message names what
    differs and both values."""


class ProtocolMismatch(TransferError):
    """The peer speaks another protocol version; the message names both."""


class BadFrame(TransferError):
    """The peer sent bytes that are no frame of ours: oversized, out of turn or garbage."""


class Corrupt(TransferError):
    """The bytes that arrived do not have the checksum that was stored with them."""


class Cancelled(TransferError):
    """The caller cancelled the operation."""


class Closed(TransferError):
    """The connection, client or segment was closed on this side."""


class TooManyOps(TransferError):
    """As much is in flight as the limit allows that the message names; wait for some of it."""

    retryable = True


class PeerRestarted(TransferError):
    """The peer is another process than the one that gave the descriptor; take a new one."""


class SegmentError(MoonpoolError):
    """A segment could not be created, adopted or mapped."""


class SegmentLocked(SegmentError):
    """Another living process owns the segment; the message names its pid when known."""


class SegmentDamaged(SegmentError):
    """The file is no segment of this version: wrong magic, wrong version or truncated."""


class SegmentSpace(SegmentError):
    """The file system has less room than the segment needs."""


class RegisterRefused(SegmentError):
    """The GPU's driver did not take the memory (a dax device may refuse): use a bounce buffer."""


class RouterError(MoonpoolError):
    """The router has no place for a request."""


class NoWorker(RouterError):
    """No worker is registered, healthy and eligible; the message says what ruled them out."""

    retryable = True


class WorkersBusy(RouterError):
    """Every eligible worker is above its busy limit; try again after `retry_after_s`."""

    retryable = True

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestTooLarge(RouterError):
    """Prompt and answer are longer than the context of every eligible worker."""


class CacheError(MoonpoolError):
    """An engine's own cache cannot do what was asked of it."""


class OutOfPages(CacheError):
    """Fewer pages are free or may be evicted than are needed; nothing was taken."""

    retryable = True


class LeaseReleased(CacheError):
    """A lease was released before; a second release would give away pages of somebody else."""


class EngineError(MoonpoolError):
    """The engine has no answer for a request."""


class EngineBusy(EngineError):
    """No place in the queue, or no pages within its time; try again after `retry_after_s`."""

    retryable = True

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineStopped(EngineError):
    """The engine was closed, or its thread ended; the message says why."""


class MissingExtra(MoonpoolError, ImportError):
    """An optional dependency is not installed."""


def missing_extra(feature: str, extra: str) -> MissingExtra:
    """The one line that names the pip extra `feature` needs; the caller raises it."""
    return MissingExtra(f"{feature} needs an extra: pip install 'moonpool[{extra}]'")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' for the closest of `known`, or '' when none is close; appendable."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""


def error_from_code(code: str, message: str) -> MoonpoolError:
    """The error a peer named by `code`, so that both ends raise the same class.

    An unknown code, from a newer peer, becomes a plain MoonpoolError that shows it.
    """
    found = _by_code(MoonpoolError).get(code)
    return found(message) if found else MoonpoolError(f"{code}: {message}")


def _by_code(root: type[MoonpoolError]) -> dict[str, type[MoonpoolError]]:
    known = {root.code: root}
    for child in root.__subclasses__():
        known.update(_by_code(child))
    return known
