"""What clients ask of the master, and its answers, packed columns inside (see `messages`)."""

from __future__ import annotations

import msgspec

from moonpool.pool.message_words import (
    KeyColumn,
    ReadTimes,
    ReplicaColumn,
    SegmentEndpoint,
    Touches,
)


class Reserve(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Ask for the right to write n keys. `parent_of` i32[n]: index into the batch, -1 none,
    -2-j: `outside_parents[j]`. With `chain` the batch is admitted as a contiguous prefix."""

    keys: KeyColumn
    sizes: bytes  # u64[n]
    parent_of: bytes  # i32[n]
    outside_parents: KeyColumn = KeyColumn()
    replicas: int = 1
    min_replicas: int = 0  # 0: same as replicas
    pin: int = 0  # 0 none, 1 soft, 2 hard; + 4 low priority, + 8 high priority
    expiry_ms: int = 0  # wall clock, 0 never
    tenant: int = 0
    chain: bool = False
    replace: bool = False
    prefer_segment: int = -1
    touches: Touches = Touches()
    pin_ttl_ms: int = 0  # of a soft pin, 0: the master's default
    pin_refresh: bool = False  # reads begin it anew
    group: bytes = b""  # what these keys are used together with


class Reserved(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """`status` u8[n] of PutStatus; for granted ones `row` i32, `attempt` u64 (the version's
    sequence) and `segments` u16[n * replicas] (0xffff: none)."""

    term: int
    status: bytes
    row: bytes
    attempt: bytes
    segments: bytes
    expires_in_ms: int
    topology_version: int


class Commit(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """Sealed replicas of m attempts, in chain order."""

    term: int
    row: bytes  # i32[m]
    attempt: bytes  # u64[m]
    crc: bytes  # u32[m]
    replicas: ReplicaColumn
    touches: Touches = Touches()


class Committed(msgspec.Struct, array_like=True, frozen=True, tag=4):
    status: bytes  # u8[m] of PutStatus


class Abort(msgspec.Struct, array_like=True, frozen=True, tag=5):
    row: bytes
    attempt: bytes


class Done(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """A bare yes."""

    count: int = 0


class Reoffer(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """`failed` u16[m]: the segment that could not take attempt i. Asks for another one each."""

    row: bytes
    attempt: bytes
    failed: bytes


class Reoffered(msgspec.Struct, array_like=True, frozen=True, tag=8):
    segments: bytes  # u16[m], 0xffff: none left
    topology_version: int


class Await(msgspec.Struct, array_like=True, frozen=True, tag=9):
    """Wait (bounded) until these keys are settled."""

    keys: KeyColumn
    wait_ms: int


class Awaited(msgspec.Struct, array_like=True, frozen=True, tag=10):
    status: bytes  # u8[n] of AwaitStatus


class Lookup(msgspec.Struct, array_like=True, frozen=True, tag=11):
    """Placements of n keys; with `prefix` only of the leading run of found ones."""

    keys: KeyColumn
    prefix: bool = False
    touches: Touches = Touches()
    tenant: int = 0


class Found(msgspec.Struct, array_like=True, frozen=True, tag=12):
    """`status` u8[n] of LookupStatus (with prefix: only the first k are answered, the rest
    are ABSENT); `row`, `sequence`, `size`, `crc` for all n (0 where not found)."""

    status: bytes
    row: bytes  # i32[n]
    term: bytes  # u64[n]
    sequence: bytes  # u64[n]
    size: bytes  # u64[n]
    crc: bytes  # u32[n]
    replicas: ReplicaColumn
    topology_version: int


class Exists(msgspec.Struct, array_like=True, frozen=True, tag=13):
    keys: KeyColumn
    touches: Touches = Touches()
    tenant: int = 0


class Existence(msgspec.Struct, array_like=True, frozen=True, tag=14):
    found: bytes  # u8[n], 1 committed and readable


class Remove(msgspec.Struct, array_like=True, frozen=True, tag=15):
    keys: KeyColumn
    wait_ms: int = 1000  # how long to wait for unreachable agents' leases before saying PENDING
    tenant: int = 0


class Removed(msgspec.Struct, array_like=True, frozen=True, tag=16):
    status: bytes  # u8[n] of RemoveStatus
    pending_nodes: list[str] = []


class RemovePrefix(msgspec.Struct, array_like=True, frozen=True, tag=17):
    """Remove every object whose key starts with `prefix` (answers Done with the count)."""

    prefix: bytes
    wait_ms: int = 1000
    tenant: int = 0


class List(msgspec.Struct, array_like=True, frozen=True, tag=18):
    prefix: bytes = b""
    cursor: int = 0
    limit: int = 1000
    tenant: int = 0


class Listed(msgspec.Struct, array_like=True, frozen=True, tag=19):
    keys: KeyColumn
    size: bytes  # u64[n]
    replicas: bytes  # u8[n]
    cursor: int  # -1: end


class Stat(msgspec.Struct, array_like=True, frozen=True, tag=20):
    pass


class Status(msgspec.Struct, array_like=True, frozen=True, tag=21):
    """A free-form, documented dictionary (see docs/operations.md)."""

    values: dict[str, object]


class Topology(msgspec.Struct, array_like=True, frozen=True, tag=22):
    pass


class TopologyIs(msgspec.Struct, array_like=True, frozen=True, tag=23):
    version: int
    term: int
    segments: list[SegmentEndpoint]


class EventsFrom(msgspec.Struct, array_like=True, frozen=True, tag=24):
    term: int
    sequence: int
    limit: int = 1000
    wait_ms: int = 0


class Event(msgspec.Struct, array_like=True, frozen=True):
    """kind: put, replace, remove (by a client), evict, expire (its time to live is over), lose (its
    last copy is lost or worthless), node_lost, node_back, clear; of tiers offload (a copy came to
    `medium`), promote (one came to memory), demote (a copy in memory went, one below stays),
    forget (a copy below went), tier_lost, tier_back. `medium` empty: memory, or wherever it was."""

    term: int
    sequence: int
    kind: str
    key: bytes
    parent: bytes
    size: int
    node: str
    wall_ms: int
    medium: str = ""

    @property
    def gone(self) -> bool:
        """The key has no value any more."""
        return self.kind in ("remove", "evict", "expire", "lose")


class Events(msgspec.Struct, array_like=True, frozen=True, tag=25):
    """`rebase`: the asked position is gone or of another term; take a snapshot (List) first."""

    events: list[Event]
    term: int
    next_sequence: int
    rebase: bool


class Lease(msgspec.Struct, array_like=True, frozen=True, tag=26):
    """Take (`lease` 0), renew or, with `ttl_ms` 0, release a lease on objects by row."""

    lease: int
    row: bytes
    sequence: bytes
    ttl_ms: int


class Leased(msgspec.Struct, array_like=True, frozen=True, tag=27):
    lease: int
    granted: bytes  # u8[n]
    ttl_ms: int


class Touch(msgspec.Struct, array_like=True, frozen=True, tag=28):
    """Touches alone, when no other request came within touch_flush_ms, and what reads took."""

    touches: Touches
    times: list[ReadTimes] = []


class Report(msgspec.Struct, array_like=True, frozen=True, tag=30):
    """Replicas whose bytes failed their CRC at a reader: the master drops them (answers Done)."""

    row: bytes  # i32[n]
    sequence: bytes  # u64[n]
    segment: bytes  # u16[n]
    slot: bytes  # u32[n]
    generation: bytes  # u64[n]


class Failure(msgspec.Struct, array_like=True, frozen=True, tag=29):
    """The request could not be answered: `code` names a class of core.errors."""

    code: str
    text: str


class Drain(msgspec.Struct, array_like=True, frozen=True, tag=31):
    """Move all objects away from a node, or `stop` that; answers Done: copies still there."""

    node: str
    stop: bool = False


class RemoveWhere(msgspec.Struct, array_like=True, frozen=True, tag=32):
    """Remove what fits all conditions, among some rows from `cursor` on; `look`: only count."""

    prefix: bytes = b""
    contains: bytes = b""
    suffix: bytes = b""
    size_min: int = 0
    size_max: int = 2**63 - 1
    look: bool = False
    cursor: int = 0
    wait_ms: int = 1000
    tenant: int = 0


class RemovedWhere(msgspec.Struct, array_like=True, frozen=True, tag=33):
    count: int
    size: int  # bytes of those objects
    cursor: int  # where to go on, -1: end


class BeginTask(msgspec.Struct, array_like=True, frozen=True, tag=34):
    """Copy, move or clear objects beside other work. `kind`: copy (a copy more, on `target`), move
    (from `source` to `target`) or clear (the copy on `source` goes). Nodes by name; a move without
    `source` takes whichever copy is best to read. `name`: 16 random bytes; the same ones are the
    same task. Answers TaskIs."""

    kind: str
    name: bytes
    keys: KeyColumn
    target: str
    source: str
    deadline_ms: int


class AskTask(msgspec.Struct, array_like=True, frozen=True, tag=35):
    """How far a task is, and what became of `limit` keys from number `cursor` on; `cancel` it."""

    id: str
    cancel: bool = False
    cursor: int = 0
    limit: int = 0


class TaskIs(msgspec.Struct, array_like=True, frozen=True, tag=36):
    """`state` of TaskState; `status` u8[k] of TaskKeyStatus for the keys asked for."""

    id: str
    state: str
    kind: str = ""
    target: str = ""
    source: str = ""
    total: int = 0
    done: int = 0
    failed: int = 0
    size: int = 0  # bytes of what was done
    left_ms: int = 0
    keys: KeyColumn = KeyColumn()
    status: bytes = b""
    cursor: int = -1  # where to go on, -1: end


class ListTasks(msgspec.Struct, array_like=True, frozen=True, tag=37):
    """Those that run and those that ended lately, without their keys; answers Tasks."""


class Tasks(msgspec.Struct, array_like=True, frozen=True, tag=38):
    tasks: list[TaskIs]
