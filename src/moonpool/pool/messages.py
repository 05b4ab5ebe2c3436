"""What travels between clients, nodes and the master: msgspec structs, columns as packed bytes.

A batch travels as columns: `keys` is one blob with cumulative u32 ends, numeric columns are
little-endian numpy bytes. Nothing here decides anything. Golden vectors pin the encoding.
"""

from __future__ import annotations

import msgspec

from moonpool.pool.message_words import MEMORY as MEMORY
from moonpool.pool.message_words import NO_SEGMENT as NO_SEGMENT
from moonpool.pool.message_words import PROTOCOL_VERSION as PROTOCOL_VERSION
from moonpool.pool.message_words import REPLICAS_MAX as REPLICAS_MAX
from moonpool.pool.message_words import SLOTS_MAX as SLOTS_MAX
from moonpool.pool.message_words import VERSIONS as VERSIONS
from moonpool.pool.message_words import AwaitStatus as AwaitStatus
from moonpool.pool.message_words import KeyColumn as KeyColumn
from moonpool.pool.message_words import LookupStatus as LookupStatus
from moonpool.pool.message_words import PutStatus as PutStatus
from moonpool.pool.message_words import ReadTimes as ReadTimes
from moonpool.pool.message_words import RemoveStatus as RemoveStatus
from moonpool.pool.message_words import ReplicaColumn as ReplicaColumn
from moonpool.pool.message_words import SegmentEndpoint as SegmentEndpoint
from moonpool.pool.message_words import TaskKeyStatus as TaskKeyStatus
from moonpool.pool.message_words import TaskState as TaskState
from moonpool.pool.message_words import Touches as Touches
from moonpool.pool.messages_client import Abort as Abort
from moonpool.pool.messages_client import AskTask as AskTask
from moonpool.pool.messages_client import Await as Await
from moonpool.pool.messages_client import Awaited as Awaited
from moonpool.pool.messages_client import BeginTask as BeginTask
from moonpool.pool.messages_client import Commit as Commit
from moonpool.pool.messages_client import Committed as Committed
from moonpool.pool.messages_client import Done as Done
from moonpool.pool.messages_client import Drain as Drain
from moonpool.pool.messages_client import Event as Event
from moonpool.pool.messages_client import Events as Events
from moonpool.pool.messages_client import EventsFrom as EventsFrom
from moonpool.pool.messages_client import Existence as Existence
from moonpool.pool.messages_client import Exists as Exists
from moonpool.pool.messages_client import Failure as Failure
from moonpool.pool.messages_client import Found as Found
from moonpool.pool.messages_client import Lease as Lease
from moonpool.pool.messages_client import Leased as Leased
from moonpool.pool.messages_client import List as List
from moonpool.pool.messages_client import Listed as Listed
from moonpool.pool.messages_client import ListTasks as ListTasks
from moonpool.pool.messages_client import Lookup as Lookup
from moonpool.pool.messages_client import Remove as Remove
from moonpool.pool.messages_client import Removed as Removed
from moonpool.pool.messages_client import RemovedWhere as RemovedWhere
from moonpool.pool.messages_client import RemovePrefix as RemovePrefix
from moonpool.pool.messages_client import RemoveWhere as RemoveWhere
from moonpool.pool.messages_client import Reoffer as Reoffer
from moonpool.pool.messages_client import Reoffered as Reoffered
from moonpool.pool.messages_client import Report as Report
from moonpool.pool.messages_client import Reserve as Reserve
from moonpool.pool.messages_client import Reserved as Reserved
from moonpool.pool.messages_client import Stat as Stat
from moonpool.pool.messages_client import Status as Status
from moonpool.pool.messages_client import TaskIs as TaskIs
from moonpool.pool.messages_client import Tasks as Tasks
from moonpool.pool.messages_client import Topology as Topology
from moonpool.pool.messages_client import TopologyIs as TopologyIs
from moonpool.pool.messages_client import Touch as Touch
from moonpool.pool.messages_node import Adopt as Adopt
from moonpool.pool.messages_node import Adopted as Adopted
from moonpool.pool.messages_node import Changed as Changed
from moonpool.pool.messages_node import Copied as Copied
from moonpool.pool.messages_node import Copy as Copy
from moonpool.pool.messages_node import Expire as Expire
from moonpool.pool.messages_node import Follow as Follow
from moonpool.pool.messages_node import Heartbeat as Heartbeat
from moonpool.pool.messages_node import HeartbeatAck as HeartbeatAck
from moonpool.pool.messages_node import InventoryChunk as InventoryChunk
from moonpool.pool.messages_node import JoinSegment as JoinSegment
from moonpool.pool.messages_node import Leaving as Leaving
from moonpool.pool.messages_node import Retire as Retire
from moonpool.pool.messages_node import RetireDone as RetireDone
from moonpool.pool.messages_node import Tombstones as Tombstones

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
    | Drain
    | RemoveWhere
    | BeginTask
    | AskTask
    | ListTasks
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
    | RemovedWhere
    | Listed
    | Status
    | TopologyIs
    | Events
    | Leased
    | TaskIs
    | Tasks
    | Failure
)
NodeToMaster = (
    JoinSegment | Adopted | InventoryChunk | Heartbeat | RetireDone | Copied | Changed | Leaving
)
MasterToNode = Adopt | HeartbeatAck | Retire | Expire | Copy | Tombstones | Failure | Follow
Message = ClientRequest | Reply | NodeToMaster | MasterToNode


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """One frame: `id` pairs a reply with its request (0: no reply expected)."""

    version: int
    id: int
    deadline_ms: int  # time left, 0: the server's default
    body: Message
    trace: bytes = b""
    """The W3C traceparent of the span that asks, where the sender traces. Empty, it is left out;
    who knows nothing of it passes over it: no new version."""


class _Untraced(msgspec.Struct, array_like=True, frozen=True):
    """An envelope as it is sent by all others."""

    version: int
    id: int
    deadline_ms: int
    body: Message


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def encode(
    body: Message,
    request_id: int,
    deadline_ms: int = 0,
    version: int = PROTOCOL_VERSION,
    trace: bytes = b"",
) -> bytes:
    if trace:
        return _encoder.encode(Envelope(version, request_id, deadline_ms, body, trace))
    return _encoder.encode(_Untraced(version, request_id, deadline_ms, body))


def decode(frame: bytes | memoryview) -> Envelope:
    """Raises msgspec.DecodeError/ValidationError; the shells translate both at one place."""
    return _decoder.decode(frame)
