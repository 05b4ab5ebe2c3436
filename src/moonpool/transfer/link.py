"""One connection to one life of a peer: what it offers, and the memory it shares with us."""

import math
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moonpool import _core
from moonpool.core.errors import BadFrame, DeadlineExceeded, MoonpoolError, Unreachable
from moonpool.core.host import host_id
from moonpool.transfer.info_page import PAGE_BYTES, PAGE_NAME, EngineInfo, read_page
from moonpool.transfer.native_errors import NATIVE_ERRORS, translated
from moonpool.transfer.segment import RemoteSegment
from moonpool.transfer.topology import SOMEWHERE, Location

if TYPE_CHECKING:
    from moonpool.transfer.peer import Peer

_PAGE_TRIES = 8


class Offer(NamedTuple):
    """A segment in the peer's directory."""

    region: int
    name: str
    nbytes: int
    writable: bool
    shared: bool


class Link:
    """A live connection, the peer's directory at some moment, and mappings of its shared memory.

    `info` is None for a peer that is no engine. `shm_reason` says why memory is not shared, '' when
    it is. Mappings are made while connecting, so that they serve even when the peer hangs later.
    """

    def __init__(self, endpoint: _core.Endpoint, address: str, timeout_s: float, shm: bool) -> None:
        self._until_s = time.monotonic() + timeout_s
        self.address = address
        self._asking = threading.Lock()  # one at a time asks what it offers
        self.shm_reason = ""
        self.info: EngineInfo | None = None
        self.offers: dict[str, Offer] = {}
        self.mappings: dict[int, _core.SharedRegion] = {}
        try:
            self.connection = endpoint.connect(address, self._left_ms())
        except NATIVE_ERRORS as error:
            raise translated(error, f"cannot connect to {address}") from None
        self.epoch = self.connection.peer_epoch
        try:
            self._describe()
            self._handoff = self._open_handoff(endpoint, shm)
            self._map()
        except NATIVE_ERRORS as error:
            self.connection.close()
            raise translated(error, f"connected to {address}, but then") from None
        except MoonpoolError:
            self.connection.close()
            raise

    @property
    def alive(self) -> bool:
        return self.connection.alive

    def location_of(self, name: str) -> Location:
        """Where the peer says that its segment is."""
        if self.info is None:
            return SOMEWHERE
        place = self.info.places.get(name)
        if place is None:
            return Location(self.info.host)
        return Location(self.info.host, place.numa_node, place.device, place.cost_class)

    def segment_of(self, peer: "Peer", offer: Offer) -> RemoteSegment:
        """What is offered, as `peer` gives it out."""
        return RemoteSegment(
            peer,
            epoch=self.epoch,
            region=offer.region,
            name=offer.name,
            nbytes=offer.nbytes,
            writable=offer.writable,
            shared=offer.shared,
            location=self.location_of(offer.name),
        )

    def refresh(self, timeout_s: float, connection: _core.Connection | None = None) -> None:
        """Reads the directory again, from now on over `connection` if one is given, and maps what
        is new. Raises TransferError."""
        until_s = time.monotonic() + timeout_s
        if not self._asking.acquire(timeout=timeout_s):
            raise DeadlineExceeded(
                f"{self.address} was asked by another thread what it offers, and did not say so"
                f" within {timeout_s:g} s"
            )
        try:
            self._until_s = until_s
            if connection is not None:
                self.connection = connection
            self.connection.refresh(self._left_ms())
            self._describe()
            self._map()
        except NATIVE_ERRORS as error:
            raise translated(error, f"directory of {self.address}") from None
        finally:
            self._asking.release()

    def close(self) -> None:
        self.connection.close()
        if self._handoff is not None:
            self._handoff.close()

    def _describe(self) -> None:
        offers = [
            Offer(one["id"], one["name"], one["nbytes"], one["writable"], one["shared"])
            for one in self.connection.regions
        ]
        page = next((offer for offer in offers if offer.name == PAGE_NAME), None)
        self.info = self._read_page(page.region) if page is not None else None
        self.offers = {offer.name: offer for offer in offers if offer is not page and offer.name}

    def _read_page(self, region: int) -> EngineInfo:
        page, zero = np.zeros(PAGE_BYTES, dtype=np.uint8), np.zeros(1, dtype=np.uint64)
        length = np.array([PAGE_BYTES], dtype=np.uint64)
        for attempt in range(_PAGE_TRIES):
            op = self.connection.read_raw(region, zero, length, page, zero, self._left_ms(), False)
            op.wait()
            if not op.ok:
                raise Unreachable(f"{self.address}: its info page cannot be read: {op.error}")
            try:
                return read_page(page)
            except BadFrame:
                # Half-written: its owner is at it just now.
                if attempt == _PAGE_TRIES - 1:
                    raise
                time.sleep(0.001)
        raise AssertionError("unreachable")

    def _open_handoff(self, endpoint: _core.Endpoint, shm: bool) -> _core.Connection | None:
        """A connection that can hand over descriptors; None with `shm_reason` set."""
        info = self.info
        if not shm:
            self.shm_reason = "switched off (transfer.shared_memory)"
        elif info is None:
            self.shm_reason = "the peer is no engine"
        elif not info.host or info.host != host_id():
            self.shm_reason = "the peer runs on another host"
        elif self.address.startswith("unix:"):
            return self.connection
        elif not info.unix_path:
            self.shm_reason = "the peer listens on no UNIX socket"
        else:
            return self._connect_unix(endpoint, info.unix_path)
        return None

    def _connect_unix(self, endpoint: _core.Endpoint, path: str) -> _core.Connection | None:
        try:
            handoff = endpoint.connect(f"unix:{path}", self._left_ms())
        except NATIVE_ERRORS as error:
            # Another container of the same machine: no error, only no shared memory.
            self.shm_reason = f"its UNIX socket {path} is out of reach: {error}"
            return None
        if handoff.peer_epoch != self.epoch:
            handoff.close()
            self.shm_reason = f"its UNIX socket {path} belongs to another process"
            return None
        return handoff

    def _map(self) -> None:
        """Maps what is new and forgets what is gone; what cannot be mapped goes over TCP."""
        shared = {offer.region for offer in self.offers.values() if offer.shared}
        self.mappings = {one: memory for one, memory in self.mappings.items() if one in shared}
        for region in sorted(shared - self.mappings.keys()):
            if self._handoff is None:
                return
            try:
                self.mappings[region] = self._handoff.map_region(region, self._left_ms())
            except NATIVE_ERRORS as error:
                # Closed since it was listed, no address space, or the peer hangs just now.
                self.shm_reason = f"the peer's memory could not be mapped: {error}"

    def _left_ms(self) -> int:
        return max(1, math.ceil((self._until_s - time.monotonic()) * 1000))
