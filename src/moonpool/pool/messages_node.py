"""What nodes and the master say to each other, packed columns inside (see `messages`)."""

from __future__ import annotations

import msgspec

from moonpool.pool.message_words import KeyColumn, SegmentEndpoint


class JoinSegment(msgspec.Struct, array_like=True, frozen=True, tag=40):
    """A node offers its segment; the master answers Adopt (a higher term) or Failure."""

    endpoint: SegmentEndpoint
    term: int  # highest term the segment has seen
    slots: int
    data_bytes: int
    sealed: int  # objects in it, for progress
    follows: bool = False  # it reports to masters that stand by, too (since message version 2)
    given_back: list[bytes] = []  # incarnations of segments that this node's life lends no more


class Adopt(msgspec.Struct, array_like=True, frozen=True, tag=41):
    segment: int
    term: int
    instance: bytes
    node_lease_ms: int
    wall_ms: int
    since: int = -1  # the master knows what is here up to this change; -1: nothing
    forget_ms: int = 0  # away longer, a tier comes back empty


class Adopted(msgspec.Struct, array_like=True, frozen=True, tag=42):
    """The term is raised in the segment; the inventory follows in InventoryChunks."""

    segment: int
    term: int
    sequence: int  # the agent's change number the inventory starts from
    tombstones: KeyColumn = KeyColumn()  # 16-byte key digests of removes that missed a replica
    tombstone_term: bytes = b""
    tombstone_sequence: bytes = b""
    resumed: bool = False  # no inventory follows, but what changed after Adopt.since
    sealed: int = -1  # objects in it, now that no older term can add any; -1: an older release


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


class Copy(msgspec.Struct, array_like=True, frozen=True, tag=50):
    """Fetch n sealed objects of `source` into the own segment; answered by Copied with this id.
    Columns as in InventoryChunk; `slot` and `generation` are the source's."""

    id: int
    segment: int
    term: int
    source: SegmentEndpoint
    slot: bytes
    generation: bytes
    version_term: bytes
    version_sequence: bytes
    size: bytes
    crc: bytes
    tenant: bytes
    expiry_ms: bytes
    replicas: bytes
    pin: bytes
    keys: KeyColumn
    parents: KeyColumn


class Copied(msgspec.Struct, array_like=True, frozen=True, tag=51):
    id: int
    segment: int
    status: bytes  # u8[n] of the native Status, 0: sealed in
    slot: bytes  # u32[n]
    generation: bytes  # u64[n]


class Follow(msgspec.Struct, array_like=True, frozen=True, tag=52):
    """A master that stands by: report to it, obey it in nothing. `segment` is its number for it."""

    segment: int


class Changed(msgspec.Struct, array_like=True, frozen=True, tag=53):
    """These slots changed up to change number `sequence`; `sealed` has what they hold now. A slot
    that is not in it holds nothing."""

    segment: int
    term: int
    sequence: int
    slot: bytes  # u32[n]
    sealed: InventoryChunk
    last: bool  # nothing more has changed until now
    gap: bool = False  # changes were missed: forget what was followed, all of it comes anew


class Leaving(msgspec.Struct, array_like=True, frozen=True, tag=54):
    """Of one segment of a node that lends several: `what` is leave (empty it, nothing new comes),
    stay (it takes part again) or gone (it is empty, and is given back now; said to those that stand
    by, too)."""

    segment: int
    term: int
    what: str
