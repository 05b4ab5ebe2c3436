"""The memory an engine has registered: who sees it, under which name, and the page that says so."""

import mmap
import os
import threading
from typing import Any

import numpy as np

from moonpool import _core
from moonpool.core.address import Address, is_loopback, parse_address
from moonpool.core.errors import BadInput
from moonpool.core.host import host_id
from moonpool.transfer.base import U8
from moonpool.transfer.cost import CostClass
from moonpool.transfer.dax import MappedSegment, map_segment
from moonpool.transfer.info_page import PAGE_NAME, EngineInfo, InfoPage, LayoutInfo, PlaceInfo
from moonpool.transfer.native_errors import NATIVE_ERRORS, translated
from moonpool.transfer.netlink import interface_of, own_addresses
from moonpool.transfer.nixl.offering import NixlOffering
from moonpool.transfer.room import require_room
from moonpool.transfer.segment import Segment, check_name
from moonpool.transfer.topology import Nic, this_machine

_RESERVED = "moonpool."


class Registry:
    """Segments by name and by region. A segment without a name has no region: no peer sees it."""

    def __init__(self, endpoint: _core.Endpoint, offering: NixlOffering | None = None) -> None:
        self.segments: dict[str, Segment] = {}
        self.regions: dict[int, Segment] = {}
        self.unix_path = ""
        self.addresses: list[str] = []
        self.nics: dict[str, Nic] = {}
        self._endpoint = endpoint
        self._offering = offering
        self._lock = threading.RLock()
        self._private = 0
        self._page = InfoPage()
        self.publish()
        endpoint.register(self._page.memory, PAGE_NAME, False)

    def allocate(self, nbytes: int, name: str, shared: bool, writable: bool) -> Segment:
        """See Engine.allocate."""
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or not 0 <= nbytes < 2**46:
            raise BadInput(f"cannot allocate {nbytes!r} bytes; give 0..2^46-1")
        if not name or not shared or nbytes == 0:
            return self.register(_aligned(nbytes), name, writable)
        with self._lock:
            self._check_free(name)
            require_room(nbytes)
            try:
                memory = self._endpoint.allocate(nbytes, name, writable)
            except NATIVE_ERRORS as error:
                raise translated(error, f"cannot allocate segment '{name}'") from None
            whole = np.frombuffer(memoryview(memory), dtype=np.uint8)
            return self._add(whole, name, writable, memory.region, shared=True)

    def register(self, buffer: Any, name: str, writable: bool) -> Segment:
        """See Engine.register."""
        with self._lock:
            if not name:
                self._private += 1
                return Segment(buffer, name=f"private-{self._private}", writable=writable)
            self._check_free(name)
            # The checks of Segment come first, so that the endpoint never meets bad memory.
            memory = Segment(buffer, name=name, writable=writable)
            region = self._endpoint.register(memory.buffer, name, writable)
            return self._add(memory.array, name, writable, region, shared=False)

    def map(self, path: str | os.PathLike[str], name: str, **how: Any) -> MappedSegment:
        """See Engine.map."""
        with self._lock:
            if not name:
                return map_segment(path, **how)
            if how.get("flush") is not None:
                raise BadInput(
                    f"segment '{name}' needs flushes that peers' reads would not make; map it "
                    f"without a name, and in the peer's process, too"
                )
            self._check_free(name)
            how |= {"on_close": self._remove, "on_layout": self.publish}
            segment = map_segment(path, name=name, **how)
            writable = segment.writable
            segment.region = self._endpoint.register(segment.buffer, name, writable)
            self._list(segment)
            return segment

    def publish(self) -> None:
        """Writes the page anew. Raises BadInput when the layouts do not fit or share a name."""
        with self._lock:
            layouts: dict[str, LayoutInfo] = {}
            planes: dict[str, tuple[int, int]] = {}
            for segment in self.segments.values():
                for name, layout in segment.layouts.items():
                    if name in layouts:
                        other = layouts[name].segment
                        raise BadInput(f"segment '{other}' publishes a layout '{name}' already")
                    layouts[name] = LayoutInfo(
                        segment.name, layout.block_bytes, layout.stride, layout.offset
                    )
                    if layout.planes > 1:
                        planes[name] = layout.planes, layout.plane_stride
            self._page.publish(
                EngineInfo(
                    host=host_id(),
                    pid=os.getpid(),
                    unix_path=self.unix_path,
                    layouts=layouts,
                    planes=planes,
                    addresses=self.addresses,
                    nics=self.nics,
                    places=self._places(),
                    nixl=self._offering.info if self._offering is not None else None,
                )
            )

    def _places(self) -> dict[str, PlaceInfo]:
        many_nodes = len(this_machine().nodes) > 1
        places = dict[str, PlaceInfo]()
        for name, segment in self.segments.items():
            _, node, device, cost_class = segment.location
            if many_nodes or device != "cpu" or cost_class is not CostClass.DRAM:
                places[name] = PlaceInfo(node, device, cost_class)
        return places

    def announce(self, listening: list[str]) -> None:
        """Tells peers where the engine listens: one that listens everywhere, on each address."""
        ours = own_addresses()
        self.addresses = [one for address in listening for one in _spelled_out(address, ours)]
        for address in self.addresses:
            nic = this_machine().nic(interface_of(parse_address(address).host, ours))
            if nic is not None:
                self.nics[address] = nic
        self.publish()

    def close(self) -> None:
        """Closes every segment that peers see."""
        for segment in list(self.segments.values()):
            segment.close()

    def _add(self, memory: Any, name: str, writable: bool, region: int, *, shared: bool) -> Segment:
        segment = Segment(
            memory,
            name=name,
            writable=writable,
            shared=shared,
            region=region,
            on_close=self._remove,
            on_layout=self.publish,
        )
        self._list(segment)
        return segment

    def _list(self, segment: Segment) -> None:
        self.segments[segment.name] = segment
        self.regions[segment.region] = segment
        if self._offering is not None:
            self._offering.offer(segment)
        many_nodes = len(this_machine().nodes) > 1
        if self._offering is not None or many_nodes or segment.cost_class is not CostClass.DRAM:
            self.publish()

    def _remove(self, segment: Segment) -> None:
        with self._lock:
            del self.segments[segment.name], self.regions[segment.region]
            # Returns when the endpoint no longer touches the memory.
            self._endpoint.unregister(segment.region)
            if self._offering is not None:
                self._offering.withdraw(segment)
            if segment.layouts or segment.device != "cpu" or self._offering is not None:
                self.publish()

    def _check_free(self, name: str) -> None:
        if check_name(name).startswith(_RESERVED):
            raise BadInput(f"names that begin with '{_RESERVED}' are the engine's own")
        if name in self.segments:
            raise BadInput(f"there is a segment '{name}' already; close it or take another name")


def _spelled_out(address: str, ours: dict[str, str]) -> list[str]:
    host, port, _ = parse_address(address)
    if host not in ("0.0.0.0", "::"):
        return [address]
    hosts = [one for one in ours if (":" in one) == (":" in host)]
    return [str(Address(one, port)) for one in hosts if not is_loopback(one)] or [address]


def _aligned(nbytes: int) -> U8:
    """Zeroed memory that begins with a page, as direct I/O wants it."""
    memory = np.zeros(nbytes + mmap.PAGESIZE, dtype=np.uint8)
    first = -memory.ctypes.data % mmap.PAGESIZE
    return memory[first : first + nbytes]
