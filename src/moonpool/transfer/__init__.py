"""Bytes between registered memory of two processes: one API over many transports.

`Engine` registers memory and connects to peers; `read` and `write` move block lists given as id
arrays over declared layouts, or as raw ranges; an `Op` reports each block. Imports only core.
"""

from moonpool.transfer.base import Blocks, BlockStatus, OpResult, OpState, Transfer, Transport
from moonpool.transfer.cost import CostClass
from moonpool.transfer.dax import MappedSegment, map_segment
from moonpool.transfer.directory import EngineEntry, EtcdDirectory
from moonpool.transfer.engine import Engine
from moonpool.transfer.explain import Choice
from moonpool.transfer.file_segment import FileSegment
from moonpool.transfer.flush import FileSync, FlushHook, LineFlush
from moonpool.transfer.inbox import Inbox
from moonpool.transfer.layout import Layout
from moonpool.transfer.local import LocalTransport
from moonpool.transfer.notification import Notification
from moonpool.transfer.op import Op
from moonpool.transfer.peer import Peer
from moonpool.transfer.prepared import Prepared
from moonpool.transfer.segment import RemoteSegment, Segment
from moonpool.transfer.sim import SimTransport
from moonpool.transfer.sim_link import SimEvent, SimLink
from moonpool.transfer.staging import Staging
from moonpool.transfer.topology import Location, Topology, discover
from moonpool.transfer.view import View
from moonpool.transfer.vram_segment import VramSegment

__all__ = [
    "BlockStatus",
    "Blocks",
    "Choice",
    "CostClass",
    "Engine",
    "EngineEntry",
    "EtcdDirectory",
    "FileSegment",
    "FileSync",
    "FlushHook",
    "Inbox",
    "Layout",
    "LineFlush",
    "LocalTransport",
    "Location",
    "MappedSegment",
    "Notification",
    "Op",
    "OpResult",
    "OpState",
    "Peer",
    "Prepared",
    "RemoteSegment",
    "Segment",
    "SimEvent",
    "SimLink",
    "SimTransport",
    "Staging",
    "Topology",
    "Transfer",
    "Transport",
    "View",
    "VramSegment",
    "discover",
    "map_segment",
]
