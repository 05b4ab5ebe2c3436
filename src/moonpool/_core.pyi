"""Types of Moonpool's native core. Each room keeps its own section, in the order of module.cpp."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

# What has the buffer protocol; mypy sees numpy's own only from Python 3.12 on.
_Buffer: TypeAlias = Buffer | npt.NDArray[Any]

# ---- crc: CRC-32C and copies that compute it ----

def crc32c(data: _Buffer, seed: int = 0) -> int:
    """CRC-32C of a C-contiguous buffer; `seed` is the CRC of the bytes before it."""

def crc32c_with(implementation: str, data: _Buffer, seed: int = 0) -> int:
    """The same by a named implementation. ValueError: this CPU does not have it."""

def crc32c_combine(crc_a: int, crc_b: int, size_b: int) -> int:
    """CRC-32C of a + b from the CRC of each and the length of b in bytes."""

def crc32c_implementation() -> str:
    """Name of the implementation in use, the fastest this CPU has."""

def crc32c_implementations() -> list[str]:
    """All that this CPU can run, fastest first; the last is "portable"."""

def copy_crc32c(dst: _Buffer, src: _Buffer, seed: int = 0) -> int:
    """Copies `src` to the start of `dst`; the CRC-32C of the copied bytes, continuing `seed`.

    ValueError: `dst` is smaller, or the two overlap. BufferError: `dst` is read-only.
    The GIL is released; the source is read once.
    """

# ---- frames of the control plane; core/wire.py defines them ----

def frame_of(start: bytes, payload: bytes) -> bytes:
    """`start`, the 8 bytes that a header begins with, then length and CRC-32C of the payload, then
    the payload. ValueError for another `start`, or 2^32 bytes and more."""

def payload_of(start: bytes, buffer: _Buffer, received: int, payload_max: int) -> bytes | None:
    """The payload when the first `received` bytes of `buffer` are one whole frame of that start,
    with the right checksum, and no more; None for all else, whose reason Python words."""

# ---- hash: SHA-256 and the block hash chains; native/block_hash.hpp defines them ----

def sha256(data: _Buffer) -> bytes: ...
def hmac_sha256(key: _Buffer, data: _Buffer) -> bytes: ...
def block_hashes_sha256(
    tokens: npt.NDArray[np.uint32], block_size: int, parent: _Buffer = b"", partial: bool = False
) -> npt.NDArray[np.uint8]:
    """Content digests of the blocks of `tokens`: u8[blocks, 32].

    Each is SHA-256 of the digest before it and its tokens as little-endian u32. `parent`: empty, or
    the digest of the block before the first. `partial`: also of a shorter last block.
    TypeError: not a contiguous one-dimensional uint32 array. ValueError: a block size below 1, a
    parent of another length.
    """

def block_hashes_u64(
    tokens: npt.NDArray[np.uint32], block_size: int, seed: int = 0, partial: bool = False
) -> npt.NDArray[np.uint64]:
    """Routing hashes of the blocks: u64[blocks]; `seed` may be the value of the block before."""

# ---- keys: batches of keys ----

def encode_keys(keys: list[Any]) -> list[bytes] | None:
    """Text as UTF-8, bytes as they are. None when one is no key: not exactly str or bytes, or not
    1 to 1024 bytes long."""

def join_keys(keys: list[bytes]) -> tuple[bytes, bytes]:
    """The keys back to back, and the end of each in there as u32. Raises TypeError, ValueError."""

class PutBatch:
    """Objects laid out to be put, before their numbers are known: holds their buffers.

    `sizes` is u64[n], of the sources when they were taken; `parents` one key each, empty where
    there is none. Raises TypeError, ValueError, BufferError.
    """

    def __init__(
        self,
        keys: list[bytes],
        sources: list[_Buffer],
        sizes: _Buffer,
        parents: list[bytes] | None,
        replicas: int,
        expiry_ms: int,
        tenant: int,
        pin: int,
    ) -> None: ...
    def __len__(self) -> int: ...
    def claims(self, term: int, sequences: _U64) -> tuple[bytes, bytes]:
        """48-byte records (ports.CLAIM_DTYPE), and each key with its parent, back to back."""

def claim_records(
    keys: list[bytes],
    sizes: _Buffer,
    sequences: _U64,
    *,
    term: int,
    replicas: int,
    expiry_ms: int,
    tenant: int,
    pin: int,
) -> tuple[bytes, bytes]:
    """Claims of keys without parents: 48-byte records (ports.CLAIM_DTYPE), and the keys back to
    back. `sizes` is u64[n]. Raises TypeError, ValueError."""

def pack_keys(keys: list[Any]) -> tuple[bytes, bytes] | None:
    """join_keys of encode_keys, without the objects in between."""

# ---- segment: shared memory that describes itself ----
# Single calls answer bytes or a size, or -1 - status; batches answer status columns.

class SegmentError(Exception): ...
class SegmentLocked(SegmentError): ...
class SegmentFormat(SegmentError): ...
class SegmentSpace(SegmentError): ...
class SegmentFull(SegmentError): ...
class SegmentClosed(SegmentError): ...

class SegmentAgent:
    """The one owner of a segment: grants, seals, retires and returns its memory.

    Claim records are 48 bytes each: size u64, term u64, seq u64, expiry_ms i64, tenant u32,
    key_len u16, parent_len u16, replicas u8, pin u8, flags u16, last_used u32; the blob holds key
    and parent of each. `now_ns` is CLOCK_BOOTTIME, -1 asks the clock. After `close`, or in a forked
    child, every call raises SegmentClosed.
    """

    @staticmethod
    def create(
        path: str | None,
        capacity_bytes: int,
        headroom_bytes: int,
        slots: int,
        rows: int = 64,
        trust_domain: bytes = b"",
        populate: bool = True,
        tombstones: int = 4096,
    ) -> SegmentAgent:
        """Formats a named file (0600, in a 0700 folder) or, without a path, a memfd. Raises
        FileExistsError, PermissionError, SegmentSpace, ValueError."""
    @staticmethod
    def adopt(path: str, populate: bool = False) -> SegmentAgent:
        """Takes over the file of a dead owner. Raises SegmentLocked, SegmentFormat, OSError."""
    def close(self) -> None:
        """Gives the ownership back, the file stays. BufferError while transfers use the segment."""
    def destroy(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def fd(self) -> int: ...
    @property
    def path(self) -> str | None: ...
    @property
    def incarnation(self) -> bytes: ...
    @property
    def trust_domain(self) -> bytes: ...
    @property
    def capacity_bytes(self) -> int: ...
    @property
    def headroom_bytes(self) -> int: ...
    @property
    def data_bytes(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def term(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def valid_until_ns(self) -> int: ...
    @property
    def adopted(self) -> dict[str, int]:
        """What adoption found: sealed, writing, retired, freed, broken."""
    def usage(self) -> dict[str, int]: ...
    def raise_term(self, term: int, instance: bytes) -> bool: ...
    def set_valid_until(self, boottime_ns: int) -> None: ...
    def claim(
        self,
        records: _Buffer,
        blob: bytes,
        term: int,
        row: int = -1,
        row_epoch: int = 0,
        now_ns: int = -1,
    ) -> tuple[_U8, _U32, _U64]:
        """(status, slot, generation). `row`: the shared-memory client that will write."""
    def seal(
        self,
        slot: _U32,
        generation: _U64,
        crc: _U32,
        flags: int,
        term: int,
    ) -> _U8:
        """Flag 1: the agent computes the CRC from its memory, `crc` is not looked at."""
    def abort(self, slot: _U32, generation: _U64) -> _U8: ...
    def expire(self, term: _U64, seq: _U64) -> int: ...
    def retire(
        self,
        slot: _U32,
        generation: _U64,
        term: int,
        hold_ms: int = 0,
        now_ns: int = -1,
    ) -> _U8: ...
    def drain(self, now_ns: int = -1) -> int: ...
    def inventory(self, start_slot: int, slots_max: int) -> dict[str, Any]:
        """Sealed slots of [start_slot, start_slot + slots_max) as columns.

        slot, generation, term, seq, size, crc, tenant, expiry_ms, last_used, replicas, pin; keys
        and parents as bytes with key_ends and parent_ends (uint32); next_start, and the sequence of
        changes it is based on."""
    def inventory_of(self, slots: _U32) -> dict[str, Any]:
        """The same columns of these slots only; what is not sealed is left out."""
    def changes(self, after_sequence: int, changes_max: int) -> dict[str, Any] | None:
        """Columns sequence, kind (1 sealed, 2 retired, 3 freed), slot, generation, term, seq.

        None at a gap: ask for the whole inventory."""
    def tombstone_add(self, hash: bytes, term: int, seq: int) -> int: ...
    def tombstone_remove(self, hash: bytes) -> bool: ...
    def tombstones(self) -> tuple[bytes, _U64, _U64]: ...
    def read(self, slot: int, generation: int, offset: int = 0, length: int = -1) -> bytes | int:
        """Whole objects are verified. An int is -1 - status."""
    def write(self, slot: int, generation: int, offset: int, source: _Buffer) -> int: ...

class SegmentView:
    """A pinned object as a read-only buffer: `memoryview(view)`.

    Its memory is not reused before `release`, or the end of the last reference or buffer of it.
    """

    def release(self) -> None:
        """BufferError while a buffer of it is in use; a second call does nothing."""
    def __enter__(self) -> SegmentView: ...
    def __exit__(self, *exc: object) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def released(self) -> bool: ...
    @property
    def crc(self) -> int: ...

class ReadTimes:
    """What reads took. Bucket i of 27 counts those under 2^(8 + i) ns, the last all others. Any
    threads may add."""

    def __init__(self) -> None: ...
    def add(self, nanoseconds: int) -> None: ...
    def take(self) -> tuple[_U64, int]:
        """Counts u64[27] and summed nanoseconds of what was added since they were taken last."""

class SegmentClient:
    """A process's own way into a segment: one-sided copies, writes and views. Thread-safe.

    Slots are named by (slot, generation) as placements give them; another generation or state is
    status moved. In a forked child, or after `close`, every call raises SegmentClosed.
    """

    def __init__(self, where: str | int, populate: bool = False) -> None:
        """By path or by descriptor (which stays the caller's). Raises SegmentFull, SegmentFormat,
        OSError. `populate` faults the whole mapping in."""
    def close(self) -> None:
        """Waits for calls under way; BufferError while views are held."""
    @property
    def closed(self) -> bool: ...
    @property
    def incarnation(self) -> bytes: ...
    @property
    def trust_domain(self) -> bytes: ...
    @property
    def slots(self) -> int: ...
    @property
    def row(self) -> int: ...
    @property
    def row_epoch(self) -> int: ...
    def renew_epoch(self) -> int:
        """Disowns every claim made so far, known or lost on the way; the new epoch. The caller
        must not be writing to any of them."""
    @property
    def pid(self) -> int: ...
    @property
    def pins(self) -> int: ...
    @property
    def read_times(self) -> ReadTimes:
        """Of the reads below that brought something; a batch is one."""
    def read_one(self, slot: int, generation: int, buffer: _Buffer, verify: bool = True) -> int:
        """Whole object into the start of `buffer`; its size. Too small a buffer stays untouched."""
    def read_bytes(self, slot: int, generation: int, verify: bool = True) -> bytes | int: ...
    def read_range(self, slot: int, generation: int, offset: int, buffer: _Buffer) -> int:
        """Fills `buffer` from `offset` of the object; generation-checked, no CRC."""
    def read_into(
        self, slot: _U32, generation: _U64, buffers: Sequence[_Buffer], verify: bool = True
    ) -> tuple[_U8, _U64]:
        """(status, size) of each; size 0 where it failed."""
    def write(self, slot: _U32, generation: _U64, sources: Sequence[_Buffer]) -> tuple[_U8, _U32]:
        """(status, crc) of each: whole objects, into slots claimed with this client's row."""
    def write_range(self, slot: int, generation: int, offset: int, source: _Buffer) -> int: ...
    def checksum(self, slot: int, generation: int) -> tuple[int, int]:
        """(status, crc) of the bytes as they are, sealed or being written by ranges."""
    def pin(self, slot: int, generation: int, verify: bool = False) -> SegmentView | int:
        """A view, or -1 - status: bounds when the object lies in several extents (copy it), busy
        when all of the row's pins are taken."""

def segment_info(path: str) -> dict[str, Any]:
    """What can be said of a file without adopting it.

    problem (None, or why it is no segment), owner_alive, owner_pid, clients_alive, file_bytes,
    incarnation, term, valid_until_ns and its geometry."""

def remove_dead_segment(path: str) -> bool:
    """Unlinks a file whose owner is gone; False while the owner lives."""

# ---- table: the catalog's row table (mechanism only, no policy, one thread) ----
#
# Array arguments are one-dimensional, contiguous and of exactly the dtype shown (TypeError
# otherwise); arguments that belong together have one length (ValueError). A row that is not live
# is an IndexError. A call that raises has changed nothing. Keys travel as one blob and the end
# offset of each key in it; a key has 1 to 1024 bytes.

_U8 = npt.NDArray[np.uint8]
_U16 = npt.NDArray[np.uint16]
_U32 = npt.NDArray[np.uint32]
_U64 = npt.NDArray[np.uint64]
_I16 = npt.NDArray[np.int16]
_I32 = npt.NDArray[np.int32]
_I64 = npt.NDArray[np.int64]
_Bool = npt.NDArray[np.bool_]

class TableFullError(Exception):
    """No row, replica row or key space is left."""

class Table:
    """Rows of objects and of replicas, found by key, linked as trees and as recency lists.

    Columns are live numpy views over memory that never moves (N = rows_max, R = replicas_max).
    Row numbers are reused, last freed first. Writable columns belong to the caller; read-only ones
    change through the methods. A fresh row has zeros in its writable columns and -1 in its links.
    """

    rows_max: int
    replicas_max: int
    lists_max: int
    # Object columns, shape (N,), written by the caller.
    state: _U8
    flags: _U8
    tenant: _U32
    term: _U64
    seq: _U64
    size: _U64
    crc: _U32
    expiry_ms: _I64
    attempt: _U64
    pin: _U8
    wanted: _U8
    # Object columns, read-only.
    parent: _I32
    first_child: _I32
    next_sibling: _I32
    prev_sibling: _I32
    children: _U32
    replica: _I32
    # Replica columns, shape (R,); the first three are written by the caller.
    replica_state: _U8
    replica_slot: _U32
    replica_generation: _U64
    replica_object: _I32
    replica_segment: _U16
    replica_next: _I32
    replica_list: _I16

    def __init__(self, rows_max: int, replicas_max: int, lists_max: int) -> None:
        """Reserve address space; memory is used as rows are. lists_max is at most 32767."""
    def __len__(self) -> int: ...
    @property
    def replica_count(self) -> int: ...
    def memory_bytes(self) -> int:
        """Bytes of memory the table has touched, index and key heap included."""

    def find(self, blob: Buffer, ends: _U32) -> _I32:
        """The row of each key, -1 where there is none."""
    def intern(self, blob: Buffer, ends: _U32) -> tuple[_I32, _Bool]:
        """The row of each key, made where there was none, and whether it is fresh.

        Raises TableFullError when the absent keys do not all fit.
        """
    def key(self, row: int) -> bytes: ...
    def keys(self, rows: _I32) -> tuple[bytes, _U32]: ...
    def parent_keys(self, rows: _I32) -> tuple[bytes, _U32]:
        """The keys of the rows' parents as a blob and ends; no bytes where there is no parent."""
    def erase(self, rows: _I32) -> None:
        """Free rows and their keys, taking them from their parents.

        ValueError for a row with a replica, or with a child not named before it in `rows`.
        """
    def scan(self, start_row: int, rows_max: int, prefix: bytes = b"") -> tuple[_I32, int]:
        """Live rows among the next `rows_max` row numbers whose keys begin with `prefix`.

        Also where to go on, -1 at the end; each call does bounded work.
        """

    def set_parent(self, rows: _I32, parents: _I32) -> _Bool:
        """Link each row under its parent (-1 for none), first among its siblings, in order.

        False where the link would close a cycle; that row stays as it was.
        """
    def descendants(self, rows: _I32) -> _I32:
        """The rows and all below them, each once, children before parents."""
    def ancestors_order(self, rows: _I32) -> _I32:
        """The rows and all above them, each once, in the order in which a touch of each row and
        then of its ancestors, row by row, would leave them: children before parents."""

    def add_replicas(self, rows: _I32, segments: _U16, slots: _U32, generations: _U64) -> _I32:
        """One more replica for each row, last in its chain, on no list; a row has at most 255."""
    def remove_replicas(self, replicas: _I32) -> None:
        """Free replica rows, taking them from their lists."""
    def replicas_of(self, rows: _I32) -> tuple[_U8, _I32]:
        """How many replicas each row has, and all of them, row by row."""

    def list_push(self, list_id: int, replicas: _I32) -> None:
        """Append at the most recent end; ValueError when one is on a list."""
    def list_remove(self, replicas: _I32) -> None:
        """ValueError when one is on no list."""
    def list_touch(self, replicas: _I32) -> None:
        """Move each to the most recent end of its list, in order; ValueError as list_remove."""
    def list_length(self, list_id: int) -> int: ...
    def list_tail(self, list_id: int, n: int, skip: int = 0) -> _I32:
        """Up to n replicas from the least recent, after `skip` of them."""
    def list_iter(self, list_id: int) -> _I32:
        """All replicas of a list, least recent first."""

    def touch_objects(self, rows: _I32, seqs: _U64) -> int:
        """Make rows and their ancestors most recent, in `ancestors_order`, on all their lists.

        Rows that are gone or whose `seq` is another one are skipped, as replicas on no list are.
        Returns how many rows matched.
        """
    def reserve_batch(
        self,
        rows: _I32,
        sizes: _U64,
        *,
        state: int,
        tenant: int,
        term: int,
        first_seq: int,
        first_attempt: int,
        expiry_ms: int = 0,
        wanted: int = 1,
        pin: int = 0,
    ) -> None:
        """Fill the writable columns of rows; `seq` and `attempt` count up from the first along the
        batch, flags and crc become 0."""
    def commit_batch(
        self,
        rows: _I32,
        attempts: _U64,
        segments: _U16,
        slots: _U32,
        generations: _U64,
        crcs: _U32,
        *,
        state_from: int,
        state_to: int,
        touch_ancestors: bool = True,
    ) -> tuple[_U8, _I32]:
        """Take sealed replicas in: (status, replica rows). One entry per replica; a row may repeat.

        An entry fits when its row is live, has this attempt, is in `state_from` (or was committed
        by this call) and has fewer than 255 replicas: status 0; the row gets state and crc, and
        the replica goes to the list that has its segment's number. Otherwise status 1, replica -1
        and no change. The batch names parents first; the lists get children first, so that a root
        ends most recent; ancestors outside the batch are touched too when `touch_ancestors`.
        """

    def collect_victims(
        self,
        candidates: _I32,
        *,
        segment: int,
        bytes: int,
        objects: int,
        kept_flags: int,
        kept_state: int,
        chosen_flag: int,
    ) -> tuple[_I32, _U32, _U64, _U64, _I32]:
        """Closures (an object and all below it, children first) of candidate replicas, in order.

        Stops once they free `bytes` and `objects` on `segment`. A closure with a row that has one
        of `kept_flags` or is in `kept_state` is spared. Rows taken get `chosen_flag`; rows that
        have it count as gone. Returns (rows back to back, end of each closure, bytes and objects
        freed on the segment up to each closure, spared candidates).
        """
    def batch_parents(
        self, rows: _I32, parent_of: _I32, outside: _I32, state: int
    ) -> tuple[_I32, _U8]:
        """The parent of each row by place: an earlier place, -1 none, -2 - j the row outside[j].

        Returns (parent rows, verdicts): 0 fine, 1 malformed, 2 outside parent not in `state`.
        """
    def reserve_new(
        self,
        blob: _Buffer,
        ends: _U32,
        sizes: _U64,
        parent_of: _I32,
        outside_blob: _Buffer,
        outside_ends: _U32,
        *,
        parent_state: int,
        state: int,
        tenant: int,
        term: int,
        first: int,
        expiry_ms: int = 0,
        wanted: int = 1,
        pin: int = 0,
    ) -> tuple[_I32, _I32] | None:
        """Rows for keys that nobody knows yet, linked to their parents and reserved; sequences and
        attempts count up from `first`. Returns (rows, parent rows). None, and nothing has changed:
        a key is known or named twice, or a parent is neither none (-1), nor an earlier place, nor
        (-2 - j) the key j of `outside_blob` in `parent_state`."""
    def commit_whole(
        self,
        by_slot: _I32,
        rows: _I32,
        attempts: _U64,
        segment: int,
        slots: _U32,
        generations: _U64,
        crcs: _U32,
        *,
        first: int,
        count: int,
        state_from: int,
        state_to: int,
        orphan_flag: int,
        touch_ancestors: bool,
    ) -> int:
        """One replica each, in slots of one segment that hold nothing (-1 in `by_slot`, which is
        told). 1: each row is named once, in `state_from`, has its attempt in [first, first +
        count), and its parent is none, in `state_to` or named before it. 2: so, but a parent has
        `orphan_flag` or a row has a child in `state_to`. Else 0, and nothing has changed."""

# ---- transfer: block copies between mapped memory ----

def block_offsets(
    ids: _Buffer, count: int, stride: int, offset: int
) -> npt.NDArray[np.uint64] | None:
    """ids * stride + offset as u64[n]; None unless `ids` is a contiguous one-dimensional 32 or 64
    bit integer array with all entries in 0..count-1."""

def ranges_inside(offsets: _Buffer, lengths: _Buffer, nbytes: int) -> int | None:
    """Sum of the lengths; None when a range leaves `nbytes`. Both contiguous u64[n]."""

def cache_line_bytes() -> int:
    """Bytes of a cache line of this CPU."""

def write_back(memory: _Buffer, offsets: _U64, lengths: _U64) -> int:
    """Writes the cache lines of n blocks back to memory; how many lines, once all have left.

    Offsets and lengths are contiguous u64[n]. IndexError: a block outside `memory`; nothing
    happened. The GIL is released.
    """

def invalidate(memory: _Buffer, offsets: _U64, lengths: _U64) -> int:
    """The same, and the lines are dropped: the next load asks the memory."""

class BlockCopy:
    """Copies n blocks between two buffers; offsets and lengths are contiguous u64[n], in bytes.

    Raises IndexError for a block outside its buffer, before anything is copied. `status()` is
    u8[n] of the native Status, `crc()` u32[n] over the destination (empty without checksum).
    """

    def __init__(
        self,
        dst: _Buffer,
        dst_offsets: npt.NDArray[np.uint64],
        src: _Buffer,
        src_offsets: npt.NDArray[np.uint64],
        lengths: npt.NDArray[np.uint64],
        checksum: bool,
    ) -> None: ...
    def run(self, deadline_ns: int) -> int: ...
    def cancel(self) -> None: ...
    def status(self) -> npt.NDArray[np.uint8]: ...
    def crc(self) -> npt.NDArray[np.uint32]: ...

# ---- an engine's cache against packed objects ----

class LayerGate:
    """How many layers are in place: one thread fills, others wait, without the GIL."""

    def advance(self, layers: int) -> None: ...
    def open(self) -> None:
        """For good: nobody waits any more."""
    def wait_for(self, layer: int) -> None:
        """Until layers 0 to `layer` are in place."""

class PackedBlocks:
    """The layers of an engine's cache; an object holds one block's layers back to back.

    Each layer is (memory, count, stride, pieces, piece_bytes): block i is made of the pieces at
    i * stride + each of `pieces`. `block_ids` are contiguous u64[n], `objects` n buffers of
    `object_bytes`. IndexError for a layer or block outside its memory, before a byte moves.
    """

    def __init__(self, layers: Sequence[tuple[_Buffer, int, int, Sequence[int], int]]) -> None: ...
    @property
    def object_bytes(self) -> int: ...
    def unpack(self, block_ids: _U64, objects: Sequence[_Buffer], crcs: _U32) -> _U8:
        """Objects into the engine, one after the other. The first len(crcs) are summed on the way:
        0 in the result where the CRC-32C is another; the block is filled all the same."""
    def unpack_layers(
        self, block_ids: _U64, objects: Sequence[_Buffer], crcs: _U32, gate: LayerGate
    ) -> _U8:
        """The same layer by layer; the gate is told of each."""
    def pack(self, layer: int, block_ids: _U64, objects: Sequence[_Buffer]) -> None:
        """One layer of the engine's blocks into the objects."""

# ---- file: reads and writes of files ----

class FileJob:
    """Blocks on their way between a buffer and a file. Ended means quiet; the buffer is held until
    somebody sees the end. `status` is u8[n], `crcs` u32[n] (empty without checksum)."""

    @property
    def id(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def terminal(self) -> bool: ...
    @property
    def error(self) -> str:
        """Why it failed, in words; this and the columns raise RuntimeError while it runs."""

    @property
    def status(self) -> npt.NDArray[np.uint8]: ...
    @property
    def crcs(self) -> npt.NDArray[np.uint32]: ...
    def wait(self, timeout_ms: int) -> bool:
        """False when the time passes first. Without the GIL."""

    def cancel(self) -> None:
        """Nothing more is begun; pieces the kernel has come to their end first."""

    def notify(self) -> None:
        """The id goes to completed() when the job has ended, at once if it has."""

class FileIo:
    """Carries file jobs out. `backend`: "io_uring", "threads", or "auto": io_uring where the kernel
    lets us. Raises OSError when io_uring is asked for and cannot be had."""

    def __init__(
        self, backend: str = "auto", depth: int = 32, threads: int = 4, jobs_max: int = 1024
    ) -> None: ...
    @property
    def backend(self) -> str: ...
    @property
    def why_no_uring(self) -> str:
        """'' where it was not tried or works."""

    @property
    def completion_fd(self) -> int:
        """An eventfd, readable while completed() has something."""

    def completed(self) -> list[int]:
        """Ids of jobs that ended since the last call, of those that notify() was asked for."""

    def submit(
        self,
        fd: int,
        write: bool,
        memory: _Buffer,
        memory_offsets: _U64,
        file_offsets: _U64,
        lengths: _U64,
        deadline_ns: int,
        checksum: bool,
        may_be_cached: bool,
    ) -> FileJob:
        """Begins a job; `fd` must stay open until it has ended. `may_be_cached`: a read takes what
        the page cache has at once, on this thread. IndexError: a block outside the memory."""

    def close(self) -> None:
        """Cancels all jobs; quiet when it returns."""

# ---- endpoint: the data plane's sockets, server and client at once, one native I/O thread ----
#
# Block lists are contiguous one-dimensional arrays of exactly the dtype shown (TypeError), of one
# length (ValueError). Deadlines are milliseconds from the call; None is the option `deadline_ms`.
# Everything is safe from any thread and unusable in a fork child (EndpointClosedError).

class RefusedError(ConnectionError):
    """The peer said no in the hello (wrong token, version or user), with its reason."""

class EndpointClosedError(RuntimeError):
    """The endpoint is closed, or belongs to the parent of this fork child."""

class Op:
    """One transfer under way: QUEUED, POSTED, then DONE, FAILED, CANCELLED or EXPIRED.

    Terminal means quiet: no byte of the caller's buffers is touched any more. DONE means that the
    peer answered; `status` says per block what became of it (0 is ok). The buffers are held until
    a `wait` has seen the end, or the op is dropped and has ended; dropping does not end it. The
    result columns raise RuntimeError before the end.
    """

    @property
    def id(self) -> int:
        """Unique in its endpoint; what `Endpoint.completed` returns."""
    @property
    def state(self) -> str: ...
    @property
    def terminal(self) -> bool: ...
    @property
    def ok(self) -> bool:
        """DONE, and every block is."""
    def all_well(self) -> tuple[bytes, bytes, bytes] | None:
        """(crcs u32[n], slots u32[n], generations u64[n]) when `ok`, else None."""
    @property
    def error(self) -> str:
        """Why it FAILED, EXPIRED or was CANCELLED; empty when DONE."""
    @property
    def status(self) -> npt.NDArray[np.uint8]: ...
    @property
    def sizes(self) -> npt.NDArray[np.uint64]:
        """Bytes of each block; for whole objects the object's size, also when it did not fit."""
    @property
    def crcs(self) -> npt.NDArray[np.uint32]: ...
    @property
    def slots(self) -> npt.NDArray[np.uint32]: ...
    @property
    def generations(self) -> npt.NDArray[np.uint64]: ...
    def wait(self, timeout_ms: int | None = None) -> bool:
        """Block until terminal, without the GIL; False when `timeout_ms` pass first."""
    def wait_well(self, timeout_ms: int) -> bool:
        """The same, and True only where all is well: `ok`."""
    def wait_well_to_end(self, grace_ms: int) -> bool:
        """The same until `grace_ms` after the op's own deadline."""
    @property
    def deadline_s(self) -> float:
        """The moment it may last to, on the monotonic clock."""
    @property
    def count(self) -> int:
        """Blocks of it."""
    @property
    def nbytes(self) -> int:
        """Of all blocks of `read_blocks` and `write_blocks`; of other ops 0."""
    @property
    def local_offsets(self) -> npt.NDArray[np.uint64]:
        """Where the blocks of `read_blocks` and `write_blocks` lie here; of other ops none."""
    @property
    def remote_offsets(self) -> npt.NDArray[np.uint64]:
        """The same at the peer."""
    def cancel(self) -> None:
        """Ask for the end as CANCELLED; `wait` for it. A write of which a part has left takes its
        connection with it."""
    def notify(self) -> None:
        """Have the id put into `Endpoint.completed` at the end (at once if that has been)."""

class SharedRegion:
    """Memory shared by descriptor with peers on this host; supports the buffer protocol."""

    @property
    def region(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def writable(self) -> bool: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class BlockGrid:
    """Equal blocks of a segment: block i of `count` is the `nbytes` at offset + i * stride, which
    is not less than that."""

    def __init__(self, count: int, stride: int, offset: int, nbytes: int) -> None: ...

class Connection:
    """A connection this endpoint opened; ops run on it side by side. Closed with its last owner
    (this object and the ops on it)."""

    @property
    def address(self) -> str: ...
    @property
    def peer_epoch(self) -> int: ...
    @property
    def alive(self) -> bool: ...
    @property
    def regions(self) -> list[dict[str, Any]]:
        """As of the hello or the last `refresh`: id, name, nbytes, writable, shared."""
    @property
    def segments(self) -> list[dict[str, Any]]:
        """Likewise: incarnation (16 bytes), capacity_bytes, path ("" for anonymous memory)."""
    def refresh(self, deadline_ms: int | None = None) -> None:
        """Ask for regions and segments anew. Raises OSError."""
    def map_region(self, region: int, deadline_ms: int | None = None) -> SharedRegion:
        """Map an `allocate`d region of a peer behind a UNIX socket. Raises ValueError, OSError."""
    def close(self) -> None:
        """End the connection; its ops are terminal when this returns."""
    def ping(self, deadline_ms: int | None = None) -> Op: ...
    def fence(self, old: Connection, deadline_ms: int | None = None) -> Op:
        """Make the peer end `old`, lost or not: once this is DONE nothing sent over it is applied
        any more. ValueError for this very connection."""
    def notify(self, message: bytes, deadline_ms: int | None = None) -> Op:
        """For the peer's `Endpoint.notifications`: status BUSY when it has too many, REFUSED when
        it takes none. ValueError beyond 8 KiB."""
    def read_raw(
        self,
        region: int,
        remote_offsets: npt.NDArray[np.uint64],
        lengths: npt.NDArray[np.uint64],
        buffer: _Buffer,
        offsets: npt.NDArray[np.uint64],
        deadline_ms: int | None = None,
        checksum: bool = True,
    ) -> Op:
        """Blocks of a peer's region into `buffer` at `offsets`. ValueError outside the buffer."""
    def read_blocks(
        self,
        epoch: int,
        region: int,
        remote: BlockGrid,
        remote_ids: _Buffer,
        local: BlockGrid,
        local_ids: _Buffer,
        buffer: _Buffer,
        deadline_ms: int,
        checksum: bool,
    ) -> Op | None:
        """Blocks of a peer's region into blocks of `buffer`, which holds all of `local`. None, and
        nothing was sent, unless all is as usual: another process than `epoch` answers; ids that are
        no contiguous array of 32 or 64 bits, are not there, come twice where they are written to,
        or are not equally many; blocks of two sizes; more than a frame takes; no time; a connection
        that is lost."""
    def write_blocks(
        self,
        epoch: int,
        region: int,
        remote: BlockGrid,
        remote_ids: _Buffer,
        local: BlockGrid,
        local_ids: _Buffer,
        buffer: _Buffer,
        deadline_ms: int,
        checksum: bool,
    ) -> Op | None:
        """The other way round."""
    def write_raw(
        self,
        region: int,
        remote_offsets: npt.NDArray[np.uint64],
        lengths: npt.NDArray[np.uint64],
        buffer: _Buffer,
        offsets: npt.NDArray[np.uint64],
        deadline_ms: int | None = None,
        checksum: bool = True,
    ) -> Op:
        """Blocks of `buffer` into a peer's region. Status 0: the bytes are in place there."""
    def read_objects(
        self,
        incarnation: bytes,
        slots: npt.NDArray[np.uint32],
        generations: npt.NDArray[np.uint64],
        offsets: npt.NDArray[np.uint64],
        lengths: npt.NDArray[np.uint64],
        destinations: Sequence[_Buffer],
        deadline_ms: int | None = None,
        verify: bool = True,
    ) -> Op:
        """Bytes of sealed objects, each into its own buffer. A length of 2^64-1 takes all from the
        offset on, and status 3 (bounds) when the buffer has not the room; `sizes` says how much."""
    def gather_rows(
        self,
        incarnation: bytes,
        row_bytes: int,
        unit_tokens: int,
        slots: _Buffer,
        generations: _Buffer,
        offsets: _Buffer,
        strides: _Buffer,
        layers: _Buffer,
        counts: _Buffer,
        positions: _Buffer,
        destination: _Buffer,
        deadline_ms: int | None = None,
        verify: bool = True,
    ) -> Op:
        """Rows out of sealed objects, packed by the peer, one after another into `destination`;
        native/frame.hpp says what the columns mean. One status per layer."""

    def put_objects(
        self,
        incarnation: bytes,
        records: _Buffer,
        blob: _Buffer,
        term: int,
        sources: Sequence[_Buffer],
        deadline_ms: int | None = None,
    ) -> Op:
        """Claim, write and seal in one frame: `records` are 48-byte claims, `blob` their keys and
        parents. Status 0 is sealed; whatever else, the object left nothing behind."""
    def put_batch(
        self,
        incarnation: bytes,
        batch: PutBatch,
        term: int,
        sequences: bytes,
        deadline_ms: int | None = None,
    ) -> Op:
        """The same of a batch that was laid out; its sources go with the frame, so it is sent once.
        `sequences` is u64[n]."""
    def claim(
        self,
        incarnation: bytes,
        records: _Buffer,
        blob: _Buffer,
        term: int,
        row: int = -1,
        row_epoch: int = 0,
        deadline_ms: int | None = None,
    ) -> Op:
        """Claims for a client row of the segment; for row -1 they end with the connection."""
    def write_object(
        self,
        incarnation: bytes,
        slot: int,
        generation: int,
        offset: int,
        source: _Buffer,
        deadline_ms: int | None = None,
    ) -> Op:
        """A piece of a claimed object."""
    def seal(
        self,
        incarnation: bytes,
        slots: npt.NDArray[np.uint32],
        generations: npt.NDArray[np.uint64],
        crcs: npt.NDArray[np.uint32],
        flags: int,
        term: int,
        deadline_ms: int | None = None,
    ) -> Op:
        """Flag 1: the agent computes the CRCs itself."""
    def abort(
        self,
        incarnation: bytes,
        slots: npt.NDArray[np.uint32],
        generations: npt.NDArray[np.uint64],
        deadline_ms: int | None = None,
    ) -> Op: ...

class Endpoint:
    """Serves registered memory and attached segments, and opens connections to others.

    `epoch` names this process (0 draws one). `token` must be the same on both ends; without one
    only loopback is served. Options, each a limit: frame_blocks_max, frame_meta_bytes_max,
    frame_payload_bytes_max, connections_max, connections_per_peer_max (of one IP address),
    regions_max, segments_max, ops_max, replies_max and claims_max (per connection),
    notifications_max (0: none is taken in), turn_bytes (per connection and turn), piece_bytes
    (checksummed at a time), hello_ms, deadline_ms, deadline_max_ms, stall_ms; and share_cpu, no
    limit but whether small questions of one host, waited for one by one, keep both ends on one
    CPU. TypeError for another name.

    `tenants`: further tokens, each with the number of its tenant. Whoever shows one reaches only
    objects of that tenant, claims become its own, and registered memory is out of reach.
    """

    def __init__(
        self,
        epoch: int = 0,
        token: bytes = b"",
        tenants: Sequence[tuple[int, bytes]] = (),
        **options: int,
    ) -> None: ...
    @property
    def epoch(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def completion_fd(self) -> int:
        """Readable while `completed` has something: for an asyncio reader."""
    def completed(self) -> list[int]:
        """Ids of ended ops for which `notify` was called, each once."""
    def listen_tcp(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Serve on a TCP port and return it. Raises OSError, ValueError."""
    def listen_unix(self, path: str) -> None:
        """Serve on a socket file of mode 0600 (same user only), removed by `close`."""
    def serve(self, descriptor: int) -> None:
        """Serve one peer over a connected stream socket, which is taken over (a tunnel)."""
    def connect_over(
        self, descriptor: int, address: str, timeout_ms: int | None = None
    ) -> Connection:
        """The same as `connect` over a connected stream socket, which is taken over."""
    def connect(self, address: str, timeout_ms: int | None = None) -> Connection:
        """To "host:port" or "unix:/path". Raises RefusedError, OSError, ValueError."""
    def register(self, buffer: _Buffer, name: str = "", writable: bool = False) -> int:
        """Let peers read (and write) a buffer, which is held until `unregister`."""
    def unregister(self, region: int) -> None:
        """Raises KeyError. When it returns, no transfer touches the memory any more."""
    def allocate(self, nbytes: int, name: str = "", writable: bool = False) -> SharedRegion:
        """A region that peers behind a UNIX socket can map. Raises OSError without memory."""
    def attach(self, agent: SegmentAgent) -> None:
        """Serve a segment's objects. ValueError when it is attached already."""
    def detach(self, agent: SegmentAgent) -> None:
        """Raises KeyError. Afterwards no request uses the segment, and it can be closed."""
    @property
    def notification_fd(self) -> int:
        """Readable while there are notifications, and after `close`."""
    def notifications(self, most: int) -> list[bytes]:
        """The oldest that peers have sent, in the order of arrival; each is given once."""
    def stats(self) -> dict[str, int]: ...
    def close(self) -> None:
        """End every op (FAILED) and connection and join the thread. Again: nothing happens."""

# ---- radix: the prefix tree of an engine's own KV cache ----
# Namespaces are bytes with a seed for their routing chain. Tokens are int32 or uint32, contiguous.

class RadixLease:
    """Holds the pages it names until `release`, or until nobody has it any more."""

    @property
    def held(self) -> bool: ...
    def __len__(self) -> int:
        """Pages."""
    def release(self) -> bool:
        """False: it was released before."""
    def touch(self) -> None:
        """What it holds counts as used now."""
    @property
    def pages(self) -> npt.NDArray[np.int32]: ...
    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """The routing chain, one a page."""

class RadixTree:
    """Which pages hold which tokens; native/radix.hpp says more. Not for several threads at once
    without the GIL. `order` of the leaves that go: used, created, uses, or external."""

    def __init__(self, page_size: int, order: str = "used", events_max: int = 0) -> None: ...
    def match(
        self, space: bytes, seed: int, tokens: _Buffer, tokens_max: int, touch: bool
    ) -> RadixLease:
        """The longest cached prefix of the first `tokens_max` tokens, in whole pages."""
    def lookup(self, space: bytes, tokens: _Buffer, tokens_max: int) -> int:
        """Its pages, and no change of anything."""
    def insert(
        self,
        space: bytes,
        seed: int,
        tokens: _Buffer,
        pages: npt.NDArray[np.int32],
        owner: RadixLease | None = None,
    ) -> tuple[RadixLease, int]:
        """Caches one page of tokens per entry of `pages`; how many of them were cached already.
        ValueError: fewer tokens than that. `owner`: a lease of the caller's on this very chain."""
    def evict(self, count: int) -> npt.NDArray[np.int32]: ...
    def is_tail(self, hash: int) -> bool: ...
    def evict_tail(self, hash: int) -> int:
        """Its page, or -1 when it is no tail that may go. Order external only, like is_tail."""
    def clear(self) -> npt.NDArray[np.int32]: ...
    def take_journal(
        self,
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
        """Since the last call, with order external: hash, pages before it in its chain, and 0 used
        again, 1 came, 2 went by another way than evict_tail."""
    def take_events(
        self,
    ) -> tuple[
        bool, list[tuple[int, bool, bytes, int, npt.NDArray[np.uint64], npt.NDArray[np.uint32]]]
    ]:
        """Whether some were lost, and (kind, starts a chain, namespace, parent, hashes, tokens) of
        each since; kinds: 0 stored, 1 removed, 2 cleared."""
    def report(
        self, ranges: bytes | None = None
    ) -> list[tuple[int, bool, bytes, int, npt.NDArray[np.uint64], npt.NDArray[np.uint32]]]:
        """Every cached run, parents first; with `ranges` (32 bytes, a bit for each first byte of a
        hash) those pages only."""
    def digest(self) -> tuple[bytes, bytes]:
        """By first byte of their hashes: how many pages, and the exclusive or of their hashes;
        256 little-endian u64 each."""
    def check(self) -> tuple[str, npt.NDArray[np.int32]]:
        """The first invariant that does not hold, or "", and every cached page."""
    @property
    def cached_pages(self) -> int: ...
    @property
    def protected_pages(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    @property
    def leases(self) -> int: ...

# ---- prefix_index: the router's index ----

class BadMessage(ValueError): ...

class PrefixIndex:
    """Own prefix hash -> holders: slots 0..7 of places below 65,536.

    Slot 0 is the device, 1 host memory, 2 disk; 3 and above are guesses and count as the device.
    Place 0 is the pool. Hash columns are u64, places i64; other types are a TypeError.
    """

    def __init__(self, bytes_max: int) -> None: ...
    def __len__(self) -> int: ...
    def store(
        self, place: int, slot: int, hashes: npt.NDArray[np.uint64], parent: int = 0
    ) -> None: ...
    def remove(self, place: int, slot: int, hashes: npt.NDArray[np.uint64]) -> int: ...
    def drop(self, place: int, slot: int | None = None) -> None: ...
    def drop_slot(self, slot: int) -> None: ...
    def find(
        self, hashes: npt.NDArray[np.uint64], places: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Blocks, i64[3, places], cumulative by tier; and the pool's."""
    def holders(self, hashes: npt.NDArray[np.uint64]) -> dict[int, int]: ...
    def route(
        self,
        tokens: npt.NDArray[np.uint32],
        block_size: int,
        seed: int,
        places: npt.NDArray[np.int64],
        weights: npt.NDArray[np.float64],
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], int, npt.NDArray[np.uint64]]:
        """Costs, tokens held i64[3, places], tokens in the pool, and the prompt's hashes."""
    def apply(
        self,
        message: _Buffer,
        places: npt.NDArray[np.uint32],
        model_seed: int,
        block_size: int,
        walks_max: int,
    ) -> tuple[Any, ...]:
        """The fields of router.index.Applied. Raises BadMessage."""
    def held(self, place: int, slot: int) -> int: ...
    def held_each(self, places: npt.NDArray[np.int64], slot: int) -> npt.NDArray[np.int64]: ...
    @property
    def evicted(self) -> int: ...
    def stat(self) -> dict[str, int]: ...

def prefix_seed(model: str, namespace: str = "", adapter: str = "") -> int:
    """What the routing chain of these begins with; all three empty: 0."""

def group_seed(seed: int, group: int) -> int:
    """The seed of a further KV group of a hybrid model; group 0 is the seed itself."""

# ---- sparse: rows of sparse attention ----
#
# Columns are one-dimensional, contiguous u32 or u64 (TypeError), of one length where they belong
# together (ValueError). Answers are (status, index): the native Status, which entry it is about.

class Helpers:
    """`count` threads that take parts of a caller's gathers and copies, native/helpers.hpp.
    ValueError for more than 64. Callers on several threads: the first one is helped."""

    def __init__(self, count: int) -> None: ...
    @property
    def count(self) -> int: ...

class RowTable:
    """Where a prefix's rows lie: unit i holds `unit_tokens` tokens in `buffers[unit_buffers[i]]`,
    its layers `unit_strides[i]` bytes apart. IndexError for a unit outside its buffer. With guards
    the u64 at `guard_offsets[i]` of `guard_buffer` must be `guard_values[i]` before and after."""

    def __init__(
        self,
        row_bytes: int,
        unit_tokens: int,
        layers: int,
        tokens: int,
        buffers: Sequence[_Buffer],
        unit_buffers: _Buffer,
        unit_offsets: _Buffer,
        unit_strides: _Buffer,
        guard_buffer: _Buffer | None = None,
        guard_offsets: _Buffer | None = None,
        guard_values: _Buffer | None = None,
    ) -> None: ...
    def gather(
        self,
        layers: _Buffer,
        counts: _Buffer,
        positions: _Buffer,
        out: _Buffer,
        helpers: Helpers | None = None,
    ) -> tuple[int, int]: ...
    def copy(
        self, layer: int, first: int, count: int, out: _Buffer, helpers: Helpers | None = None
    ) -> tuple[int, int]: ...

class HotBuffer:
    """Fixed rows a layer, native/hot_buffer.hpp. ValueError for lists that do not fit it,
    RuntimeError from a second thread at the same time."""

    def __init__(
        self,
        layers: int,
        slots: int,
        row_bytes: int,
        policy: str = "lru",
        seed: int = 0,
        second_rows: int = 0,
    ) -> None: ...
    def fetch(
        self,
        source: RowTable,
        layers: _Buffer,
        counts: _Buffer,
        positions: _Buffer,
        slots: _Buffer,
    ) -> tuple[int, int]: ...
    def begin(
        self, layers: _Buffer, counts: _Buffer, positions: _Buffer, slots: _Buffer
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """Layers and positions of what is missing, in the order that `finish` wants its rows."""

    def finish(self, rows: _Buffer) -> None: ...
    def abandon(self) -> None: ...
    def clear(self) -> None: ...
    def counters(self) -> dict[str, int]: ...
    @property
    def rows(self) -> npt.NDArray[np.uint8]:
        """[layers, slots, row_bytes], in place."""

    @property
    def row_memory_bytes(self) -> int: ...
    @property
    def index_memory_bytes(self) -> int: ...

def units_touched(
    positions: _Buffer, unit_tokens: int, units: int
) -> npt.NDArray[np.uint32] | None:
    """Which units of so many tokens hold one of the u32 positions, in order; None when a position
    lies beyond them."""

def store_words(buffer: _Buffer, offsets: _Buffer, values: _Buffer) -> None:
    """u64 `values[i]` at byte `offsets[i]`, seen by others after all that was written before."""
