"""What the pool answers: typed results, never a mix of sizes and status codes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from moonpool.core import errors
from moonpool.pool.message_words import TaskState as TaskState


class MissReason(StrEnum):
    """Why a get is a miss."""

    ABSENT = "absent"  # no committed object under the key
    EVICTED = "evicted"  # the same, and it went for others lately
    IN_FLIGHT = "in_flight"  # somebody is writing it
    UNREACHABLE = "unreachable"  # every replica, or the master, is out of reach
    CORRUPT = "corrupt"  # the bytes failed their CRC-32C
    EXPIRED = "expired"  # its time to live is over
    RECOVERING = "recovering"  # the master does not know yet
    DEADLINE = "deadline"  # no answer in time
    REFUSED = "refused"  # token, trust domain or tenant
    BUFFER_TOO_SMALL = "buffer_too_small"  # the object is larger than the caller's buffer


class Hit(NamedTuple):
    """The object's bytes are where the caller asked for them (`data` only for get_many)."""

    size: int
    node: str
    data: bytes | None = None

    @property
    def ok(self) -> bool:
        return True


class Miss(NamedTuple):
    """No bytes; after a miss the content of the caller's buffer is undefined."""

    reason: MissReason
    text: str = ""

    @property
    def ok(self) -> bool:
        return False

    def raise_for_buffer(self, key: bytes) -> None:
        """Raise BadSize when the miss is the caller's: a buffer smaller than the object."""
        if self.reason is MissReason.BUFFER_TOO_SMALL:
            raise errors.BadSize(f"the buffer is smaller than {key!r}; nothing was written to it")


class PutStatus(StrEnum):
    """What became of one put."""

    STORED = "stored"
    EXISTS = "exists"  # committed before: nothing was written
    IN_FLIGHT = "in_flight"  # another writer had not finished within the deadline
    PARENT_MISSING = "parent_missing"
    FULL = "full"
    QUOTA = "quota"  # its tenant's quota does not take it
    THROTTLED = "throttled"  # its tenant's turn did not come in time
    TOO_LARGE = "too_large"
    LOST = "lost"  # the attempt expired or its nodes went away before the commit
    UNREACHABLE = "unreachable"  # no master or no node within the deadline
    RECOVERING = "recovering"
    INVALID = "invalid"


_ERRORS: dict[PutStatus, type[errors.MoonpoolError]] = {
    PutStatus.PARENT_MISSING: errors.ParentMissing,
    PutStatus.FULL: errors.PoolFull,
    PutStatus.QUOTA: errors.QuotaExceeded,
    PutStatus.THROTTLED: errors.Throttled,
    PutStatus.TOO_LARGE: errors.ObjectTooLarge,
    PutStatus.LOST: errors.AttemptLost,
    PutStatus.UNREACHABLE: errors.Unreachable,
    PutStatus.RECOVERING: errors.NotReady,
    PutStatus.INVALID: errors.BadInput,
}


_STORED, _EXISTS = PutStatus.STORED, PutStatus.EXISTS  # to name a member costs 0.2 us


class PutResult(NamedTuple):
    """`replicas`: sealed copies acknowledged (0 unless stored)."""

    status: PutStatus
    replicas: int = 0
    text: str = ""

    @property
    def ok(self) -> bool:
        """The key is readable: stored now, or there before."""
        return self.status is _STORED or self.status is _EXISTS

    def raise_for_status(self, key: bytes) -> PutResult:
        """Raise the error of the status; stored, exists and in_flight are no errors."""
        error = _ERRORS.get(self.status)
        if error is not None:
            raise error(f"put of {key!r}: {self.text or self.status.value}")
        return self


class RemoveStatus(StrEnum):
    REMOVED = "removed"
    ABSENT = "absent"
    PENDING = "pending"  # invisible; a copy on an unreachable node ends with that node's lease
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest leading run of committed keys."""

    count: int
    size: int  # bytes of the run
    nodes: list[str]  # per key of the run: a node that holds it
    local: int  # keys of the run that lie on this host


class RemovedWhere(NamedTuple):
    """How many objects, and how many bytes they had."""

    objects: int
    size: int


class ObjectInfo(NamedTuple):
    key: bytes
    size: int
    replicas: int


class ObjectPage(NamedTuple):
    """Some of a listing; `cursor` None: there is no more."""

    objects: list[ObjectInfo]
    cursor: int | None


class TaskOutcome(StrEnum):
    """What became of one key of a task."""

    WAITING = "waiting"
    DONE = "done"
    ALREADY = "already"  # it was as asked for
    ABSENT = "absent"  # no such object, or none at the source
    LAST = "last"  # the only copy that can be read is not cleared
    NO_ROOM = "no_room"  # none at the target until the deadline: copies evict nothing
    FAILED = "failed"  # tried several times
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # not reached before the deadline


class TaskInfo(NamedTuple):
    """How far a task is. `lost`: it was begun under an earlier master, which took it along; what
    was done of it stays, begin it anew. `unknown`: it ended long ago, or there never was one."""

    id: str
    state: TaskState
    kind: str = ""  # copy, move or clear
    target: str = ""
    source: str = ""
    total: int = 0  # keys
    done: int = 0
    failed: int = 0
    size: int = 0  # bytes of what was done
    left_s: float = 0.0  # until its deadline

    @property
    def running(self) -> bool:
        return self.state is TaskState.RUNNING

    @property
    def ok(self) -> bool:
        """It is over, and every key is as asked for."""
        return self.state is TaskState.DONE and self.failed == 0


def task_figures(info: TaskInfo) -> dict[str, object]:
    """All but its id, as `moonpool task --json` and /v1/tasks name it."""
    return {
        "state": info.state.value,
        "kind": info.kind,
        "to": info.target,
        "source": info.source,
        "keys": info.total,
        "done": info.done,
        "failed": info.failed,
        "bytes": info.size,
        "left_s": info.left_s,
    }


TaskInfos = list[TaskInfo]
TaskOutcomes = list[tuple[bytes, TaskOutcome]]

# Named here: inside the faces' classes `list` is a method.
Answers = list[Hit | Miss]
PutResults = list[PutResult]
Bools = list[bool]
RemoveStatuses = list[RemoveStatus]
