"""What others may read and write through NIXL: an agent that knows our named segments.

Over RDMA the card refuses what is no longer registered. On one host the kernel copies between
processes and looks at nothing, so memory that was offered is kept from being reused while a peer
that may know its address is connected.
"""

import threading
from collections.abc import Callable

from moonpool.core.errors import BadInput
from moonpool.transfer.base import U8
from moonpool.transfer.info_page import NixlInfo
from moonpool.transfer.nixl.agent import Agent
from moonpool.transfer.nixl.package import load
from moonpool.transfer.segment import Segment


class NixlOffering:
    """One per engine. Thread-safe. `visitors` counts the peers connected to us."""

    def __init__(self, name: str, beyond_host: bool, visitors: Callable[[], int]) -> None:
        self._agent = Agent(load(), name, beyond_host)
        self._visitors = visitors
        self._registered: dict[str, object] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self._withdrawn: list[U8] = []
        self._metadata = self._agent.metadata()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def info(self) -> NixlInfo:
        """What peers need to know."""
        with self._lock:
            return NixlInfo(self._agent.name, self._metadata, dict(self._places))

    @property
    def withdrawn_bytes(self) -> int:
        """Memory of closed segments that is kept, see above."""
        return sum(array.nbytes for array in self._withdrawn)

    def offer(self, segment: Segment) -> None:
        """From now on peers reach `segment` through NIXL, too, unless UCX does not take it."""
        self.sweep()
        if segment.nbytes == 0 or segment.flush is not None:
            return
        address = segment.array.ctypes.data
        with self._lock:
            try:
                self._registered[segment.name] = self._agent.register(address, segment.nbytes)
            except BadInput:
                return
            self._places[segment.name] = (address, segment.nbytes)
            self._metadata = self._agent.metadata()

    def withdraw(self, segment: Segment) -> None:
        """No longer."""
        with self._lock:
            registration = self._registered.pop(segment.name, None)
            if registration is None or self._closed:
                return
            del self._places[segment.name]
            self._agent.deregister(registration)
            self._metadata = self._agent.metadata()
            self._withdrawn.append(segment.array)
        self.sweep()

    def sweep(self) -> None:
        """Lets go of withdrawn memory that nobody can know any more."""
        if self._withdrawn and self._visitors() == 0:
            with self._lock:
                self._withdrawn.clear()

    def progress(self) -> None:
        """For whoever has a thread: answers peers that connect."""
        with self._lock:
            if not self._closed:
                self._agent.progress()

    def close(self) -> None:
        """After the last peer's connection has ended."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._agent.destroy()
                self._withdrawn.clear()
