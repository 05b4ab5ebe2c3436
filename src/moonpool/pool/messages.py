"""What travels between clients, nodes and the master: msgspec structs, columns as packed bytes.

A batch travels as columns: `keys` is one blob with cumulative u32 ends, numeric columns are
little-endian numpy bytes. Nothing here decides anything. Golden vectors pin the encoding.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

PROTOCOL_VERSION = 1
REPLICAS_MAX = 8  # copies of one object
SLOTS_MAX = 1 << 28  # of one segment
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


class LookupStatus(IntEnum):
    """What a lookup says of one key; everything but FOUND is a miss with this reason."""

    FOUND = 0
    ABSENT = 1
    IN_FLIGHT = 2  # reserved, not committed yet
    UNREACHABLE = 3  # committed, but every replica is on a lost node
    EXPIRED = 4  # its TTL is over
    RECOVERING = 5


class RemoveStatus(IntEnum):
    REMOVED = 0
    ABSENT = 1
    PENDING = 2  # removed; a copy on an unreachable node may be read until its lease ends
    RECOVERING = 3


class AwaitStatus(IntEnum):
    COMMITTED = 0
    ABSENT = 1  # aborted or removed
    YOURS = 2  # the writer gave up and this waiter inherits the key: reserve it now
    TIMEOUT = 3


# --- columns shared by several messages ---------------------------------------------------------


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


# --- client -> master ---------------------------------------------------------------------------


class Reserve(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Ask for the right to write n keys. `parent_of` i32[n]: index into the batch, -1 none,
    -2-j: `outside_parents[j]`. With `chain` the batch is admitted as a contiguous prefix."""

    keys: KeyColumn
    sizes: bytes  # u64[n]
    parent_of: bytes  # i32[n]
    outside_parents: KeyColumn = KeyColumn()
    replicas: int = 1
    min_replicas: int = 0  # 0: same as replicas
    pin: int = 0  # 0 none, 1 soft, 2 hard
    expiry_ms: int = 0  # wall clock, 0 never
    tenant: int = 0
    chain: bool = False
    replace: bool = False
    prefer_segment: int = -1
    touches: Touches = Touches()


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
    """kind: put, remove, evict, node_lost, node_back, replace, clear."""

    term: int
    sequence: int
    kind: str
    key: bytes
    parent: bytes
    size: int
    node: str
    wall_ms: int


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
    """Touches alone, when no other request came within touch_flush_ms."""

    touches: Touches


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


# --- node <-> master ----------------------------------------------------------------------------


class JoinSegment(msgspec.Struct, array_like=True, frozen=True, tag=40):
    """A node offers its segment; the master answers Adopt (a higher term) or Failure."""

    endpoint: SegmentEndpoint
    term: int  # highest term the segment has seen
    slots: int
    data_bytes: int
    sealed: int  # objects in it, for progress


class Adopt(msgspec.Struct, array_like=True, frozen=True, tag=41):
    segment: int
    term: int
    instance: bytes
    node_lease_ms: int
    wall_ms: int


class Adopted(msgspec.Struct, array_like=True, frozen=True, tag=42):
    """The term is raised in the segment; the inventory follows in InventoryChunks."""

    segment: int
    term: int
    sequence: int  # the agent's change number the inventory starts from
    tombstones: KeyColumn = KeyColumn()  # 16-byte key digests of removes that missed a replica
    tombstone_term: bytes = b""
    tombstone_sequence: bytes = b""


class InventoryChunk(msgspec.Struct, array_like=True, frozen=True, tag=43):
    """Sealed slots of a segment, at most 32 Ki a chunk."""

    segment: int
    term: int
    slot: bytes  # u32[n]
    generation: bytes  # u64[n]
    version_term: bytes  # u64[n]
    version_sequence: bytes  # u64[n]
    size: bytes  # u64[n]
    crc: bytes  # u32[n]
    tenant: bytes  # u32[n]
    expiry_ms: bytes  # i64[n]
    last_used: bytes  # u32[n]
    replicas: bytes  # u8[n]
    pin: bytes  # u8[n]
    keys: KeyColumn
    parents: KeyColumn
    last: bool


class Heartbeat(msgspec.Struct, array_like=True, frozen=True, tag=44):
    segment: int
    term: int
    sequence: int
    usage: dict[str, int]
    # changes since the last heartbeat: kind u8 (1 sealed, 2 retired, 3 freed)
    change_sequence: bytes = b""
    change_kind: bytes = b""
    change_slot: bytes = b""
    change_generation: bytes = b""
    change_version_term: bytes = b""
    change_version_sequence: bytes = b""
    gap: bool = False


class HeartbeatAck(msgspec.Struct, array_like=True, frozen=True, tag=45):
    segment: int
    term: int
    want_inventory: bool = False


class Retire(msgspec.Struct, array_like=True, frozen=True, tag=46):
    """Retire these slots; answered by RetireDone with the same id."""

    id: int
    segment: int
    term: int
    slot: bytes
    generation: bytes
    hold_ms: int = 0  # a lease: keep the memory this much longer


class RetireDone(msgspec.Struct, array_like=True, frozen=True, tag=47):
    id: int
    segment: int
    status: bytes  # u8[n] of the native Status


class Expire(msgspec.Struct, array_like=True, frozen=True, tag=48):
    """Reservations that died: abort or retire whatever the agent holds of these versions."""

    segment: int
    term: int
    version_term: bytes
    version_sequence: bytes


class Tombstones(msgspec.Struct, array_like=True, frozen=True, tag=49):
    """Keep (or forget) tombstones of removes that missed a replica elsewhere."""

    segment: int
    term: int
    add: KeyColumn
    add_term: bytes
    add_sequence: bytes
    forget: KeyColumn


ClientRequest = (
    Reserve
    | Commit
    | Abort
    | Reoffer
    | Await
    | Lookup
    | Exists
    | Remove
    | RemovePrefix
    | List
    | Stat
    | Topology
    | EventsFrom
    | Lease
    | Touch
    | Report
)
Reply = (
    Reserved
    | Committed
    | Done
    | Reoffered
    | Awaited
    | Found
    | Existence
    | Removed
    | Listed
    | Status
    | TopologyIs
    | Events
    | Leased
    | Failure
)
NodeToMaster = JoinSegment | Adopted | InventoryChunk | Heartbeat | RetireDone
MasterToNode = Adopt | HeartbeatAck | Retire | Expire | Tombstones | Failure
Message = ClientRequest | Reply | NodeToMaster | MasterToNode


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """One frame: `id` pairs a reply with its request (0: no reply expected)."""

    version: int
    id: int
    deadline_ms: int  # time left, 0: the server's default
    body: Message


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def encode(body: Message, request_id: int, deadline_ms: int = 0) -> bytes:
    return _encoder.encode(Envelope(PROTOCOL_VERSION, request_id, deadline_ms, body))


def decode(frame: bytes | memoryview) -> Envelope:
    """Raises msgspec.DecodeError/ValidationError; the shells translate both at one place."""
    return _decoder.decode(frame)
