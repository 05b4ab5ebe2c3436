"""The calls of an engine that give it segments without a peer: mapped devices, files, and
device memory."""

import os
import threading
from typing import Any

from moonpool.core.sections import TransferConfig
from moonpool.transfer.base import Transport
from moonpool.transfer.cost import CostClass
from moonpool.transfer.dax import MappedSegment
from moonpool.transfer.file import FileTransport
from moonpool.transfer.file_segment import FileSegment
from moonpool.transfer.flush import FlushHook
from moonpool.transfer.registry import Registry
from moonpool.transfer.vram import TorchVram, VramTransport
from moonpool.transfer.vram_segment import VramDevice, VramSegment, checked_size


class OwnSegments:
    """What Engine inherits."""

    config: TransferConfig
    _lock: threading.RLock
    _registry: Registry
    _transports: dict[str, Transport]
    _files: list[FileSegment]
    _vram: list[VramSegment]

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

    def vram(
        self,
        memory: Any,
        *,
        device: VramDevice | str = "cuda",
        name: str = "",
        writable: bool = True,
    ) -> VramSegment:
        """Memory of a device whose blocks read() and write() move, by copies on the stream that is
        current where they are called.

        `memory` is a size in bytes, or a contiguous tensor of torch or DLPack, used in place.
        Peers do not see it; it is closed with the engine at the latest. Raises BadInput,
        SegmentSpace, MissingExtra where there is no torch, or no GPU.
        """
        driver = TorchVram(device) if isinstance(device, str) else device
        if isinstance(memory, int):
            nbytes = checked_size(memory)
            bytes_ = driver.allocate(nbytes)
        else:
            bytes_ = driver.adopt(memory)
            nbytes = int(bytes_.nbytes)
        with self._lock:
            self._require_open()
            if "vram" not in self._transports:
                self._transports["vram"] = VramTransport(self.config.queue_ops_max)
            segment = VramSegment(
                driver, bytes_, nbytes, name=name, writable=writable, on_close=self._forget_vram
            )
            self._vram.append(segment)
            return segment

    def _forget_vram(self, segment: VramSegment) -> None:
        with self._lock:
            self._vram.remove(segment)

    def _forget_file(self, segment: FileSegment) -> None:
        with self._lock:
            self._files.remove(segment)

    def _close_own(self) -> None:
        own: list[FileSegment | VramSegment] = [*self._files, *self._vram]
        for segment in own:
            segment.close()
        for name in ("file", "vram"):
            if name in self._transports:
                self._transports[name].close()

    def _require_open(self) -> None:
        raise NotImplementedError
