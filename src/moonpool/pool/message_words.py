"""The words of the control plane: statuses, limits, and columns that several messages share."""

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec

PROTOCOL_VERSION = 2  # 2: masters that stand by are followed (Follow, Changed)
VERSIONS = (1, PROTOCOL_VERSION)  # spoken by this release: the one before stays for an upgrade
REPLICAS_MAX = 8  # copies of one object
SLOTS_MAX = 1 << 28  # of one segment
MEMORY = "memory"
NO_SEGMENT = 0xFFFF  # where a column of segments names none


class KeyColumn(msgspec.Struct, array_like=True, frozen=True):
    """n keys: `blob` holds them back to back, `ends` is u32[n], the end of each."""

    blob: bytes = b""
    ends: bytes = b""


class PutStatus(IntEnum):
    """What a reservation or a commit says of one key."""

    GRANTED = 0  # write it, then commit
    EXISTS = 1  # committed already: the put is a no-op that says so (P3)
    IN_FLIGHT = 2  # somebody else writes it: await it, then reserve again
    PARENT_MISSING = 3  # its parent is neither committed nor in the batch
    FULL = 4  # no room, also after evicting what may go
    TOO_BIG = 5  # larger than any segment's capacity
    RECOVERING = 6  # the master still hears its nodes' inventories
    WAIT_PARENT = 7  # an ancestor in this batch is in flight elsewhere: reserve again after it
    COMMITTED = 8
    GONE = 9  # the attempt expired, was aborted or lost to another version
    STALE_TERM = 10  # sealed under an older term
    NO_NODE = 11  # no live segment
    INVALID = 12  # malformed (sizes, columns of unequal length, unknown row)
    HELD = 13  # no room, and nothing may go: pinned, leased or being written
    QUOTA = 14  # its tenant's quota does not take it, and nothing of its own may go
    THROTTLED = 15  # its tenant's turn to write did not come in time


class LookupStatus(IntEnum):
    """What a lookup says of one key; everything but FOUND is a miss with this reason."""

    FOUND = 0
    ABSENT = 1
    IN_FLIGHT = 2  # reserved, not committed yet
    UNREACHABLE = 3  # committed, but every replica is on a lost node
    EXPIRED = 4  # its TTL is over
    RECOVERING = 5
    EVICTED = 6  # absent: it went for others lately


class RemoveStatus(IntEnum):
    REMOVED = 0
    ABSENT = 1
    PENDING = 2  # removed; a copy on an unreachable node may be read until its lease ends
    RECOVERING = 3


class TaskState(StrEnum):
    """How far a task is. The last two are answers about tasks that this master does not have."""

    RUNNING = "running"
    DONE = "done"  # every key is settled
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # its deadline passed first
    LOST = "lost"  # it was begun under an earlier master: begin it anew
    UNKNOWN = "unknown"  # it ended long ago, or there never was one


class TaskKeyStatus(IntEnum):
    """What became of one key of a task."""

    WAITING = 0
    DONE = 1
    ALREADY = 2  # nothing was to be done: it is as asked for
    ABSENT = 3  # no such object
    LAST = 4  # a clearing of the only copy that can be read: it is kept
    NO_ROOM = 5  # until the end there was none at the target, and copies evict nothing
    FAILED = 6  # tried several times
    CANCELLED = 7
    EXPIRED = 8  # not reached before the deadline


class AwaitStatus(IntEnum):
    COMMITTED = 0
    ABSENT = 1  # aborted or removed
    YOURS = 2  # the writer gave up and this waiter inherits the key: reserve it now
    TIMEOUT = 3


class ReplicaColumn(msgspec.Struct, array_like=True, frozen=True):
    """Replicas of n objects, flattened: `counts` u8[n]; the rest one entry per replica."""

    counts: bytes = b""
    segment: bytes = b""  # u16 segment ids of this master (see Topology)
    slot: bytes = b""  # u32
    generation: bytes = b""  # u64


class Touches(msgspec.Struct, array_like=True, frozen=True):
    """Reads, applied before the request they ride on: `row` i32[n], `sequence` u64[n]."""

    row: bytes = b""
    sequence: bytes = b""


class ReadTimes(msgspec.Struct, array_like=True, frozen=True):
    """What a client's reads by one transport took, since it told last: `counts` u64[27] by doubling
    bounds, the first of 256 ns."""

    transport: str  # kind of a port: shm, tcp, or a medium
    nanoseconds: int  # all together
    counts: bytes


class SegmentEndpoint(msgspec.Struct, array_like=True, frozen=True):
    """How clients reach a segment."""

    segment: int  # u16 id, unique under one master instance, never reused by it
    incarnation: bytes  # 16 bytes
    node: str
    host_id: str  # boot id + machine id: equal means same host
    tcp: str = ""  # "host:port"
    unix: str = ""  # path of the agent's UNIX socket
    path: str = ""  # the segment's file, for shared memory
    uid: int = -1
    trust_domain: bytes = b""
    capacity_bytes: int = 0
    alive: bool = True
    labels: dict[str, str] = {}
    medium: str = MEMORY  # or that of a tier: vram, disk, remote
