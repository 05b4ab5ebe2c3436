"""The calls of an engine that give it segments without a peer: mapped devices, and files."""

import os
import threading

from moonpool.core.sections import TransferConfig
from moonpool.transfer.base import Transport
from moonpool.transfer.cost import CostClass
from moonpool.transfer.dax import MappedSegment
from moonpool.transfer.file import FileTransport
from moonpool.transfer.file_segment import FileSegment
from moonpool.transfer.flush import FlushHook
from moonpool.transfer.registry import Registry


class OwnSegments:
    """What Engine inherits."""

    config: TransferConfig
    _lock: threading.RLock
    _registry: Registry
    _transports: dict[str, Transport]
    _files: list[FileSegment]

    def map(
        self,
        path: str | os.PathLike[str],
        nbytes: int | None = None,
        *,
        offset: int = 0,
        name: str = "",
        writable: bool = True,
        create: bool = False,
        cost_class: CostClass | None = None,
        flush: FlushHook | str | None = None,
    ) -> MappedSegment:
        """A dax device or a file as a passive segment: every process that maps the same range of
        `path`, on this host or another, has the same bytes and moves them itself.

        `nbytes` is the rest of `path` unless given; `create` makes a file of at least that size.
        `flush` is for memory whose hardware does not keep caches coherent: "lines" (cache lines),
        "sync" (msync), or a hook of your own. With a name peers reach it, too; without one it is
        ours alone. Raises BadInput, SegmentSpace.
        """
        self._require_open()
        how = {"nbytes": nbytes, "offset": offset, "writable": writable, "create": create}
        return self._registry.map(path, name, **how, cost_class=cost_class, flush=flush)

    def open_file(
        self,
        path: str | os.PathLike[str],
        nbytes: int | None = None,
        *,
        name: str = "",
        writable: bool = True,
        create: bool = False,
        direct: bool = False,
    ) -> FileSegment:
        """A file or block device whose blocks read() and write() move, by io_uring or threads.

        `nbytes` is all of it unless given; `create` makes a file of at least that size, `direct`
        goes past the page cache. Peers do not see it; it is closed with the engine at the latest.
        Raises BadInput, SegmentSpace, BadConfig where `file_backend` cannot be had.
        """
        with self._lock:
            self._require_open()
            if "file" not in self._transports:
                self._transports["file"] = FileTransport(self.config)
            segment = FileSegment(
                path,
                nbytes,
                name=name,
                writable=writable,
                create=create,
                direct=direct,
                on_close=self._forget_file,
            )
            self._files.append(segment)
            return segment

    def _forget_file(self, segment: FileSegment) -> None:
        with self._lock:
            self._files.remove(segment)

    def _close_files(self) -> None:
        for segment in list(self._files):
            segment.close()
        if "file" in self._transports:
            self._transports["file"].close()

    def _require_open(self) -> None:
        raise NotImplementedError
