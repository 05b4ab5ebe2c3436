"""One NIXL agent, with typed errors, and an end after which it touches no memory."""

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from moonpool.core.errors import BadInput, MoonpoolError, ProtocolMismatch, Refused, Unreachable
from moonpool.transfer.base import U64
from moonpool.transfer.nixl.package import Library
from moonpool.transfer.nixl.pieces import DRAM, Far

_HERE: Final = "NIXL_INIT_AGENT"
_OPERATIONS: Final = {"read": "READ", "write": "WRITE"}


class Agent:
    """Not thread-safe beyond single calls: NIXL serializes those itself.

    Handles and lists are NIXL's objects. They keep the agent alive, so all are tracked here, and
    `destroy` takes them away from whoever still has one.
    """

    def __init__(self, library: Library, name: str, beyond_host: bool) -> None:
        self.name = name
        self._library = library
        self._agent = library.agent(name, beyond_host)
        self._handles: set[Any] = set()

    def register(self, address: int, nbytes: int, device: int = 0, kind: str = DRAM) -> Any:
        """What `deregister` takes. Raises BadInput for what NIXL does not take."""
        rows = np.array([[address, nbytes, device]], dtype=np.uint64)
        try:
            return self._agent.register_memory(rows, kind)
        except self._library.errors as error:
            raise BadInput(f"NIXL cannot register {nbytes} bytes of {kind}: {error}") from None

    def deregister(self, registration: Any) -> None:
        """The memory is its owner's again; nothing when NIXL does not know it."""
        with contextlib.suppress(*self._library.errors):
            self._agent.deregister_memory(registration)

    def metadata(self) -> bytes:
        """How to reach this agent and all memory registered with it."""
        return bytes(self._agent.get_agent_metadata())

    def progress(self) -> None:
        """Lets UCX answer connections. Cheap when there is nothing to do."""
        with contextlib.suppress(*self._library.errors):
            self._agent.get_new_notifs()

    def meet(self, metadata: bytes) -> None:
        """Learns another agent, or more of one it knows. Raises ProtocolMismatch, Unreachable."""
        try:
            self._agent.add_remote_agent(metadata)
        except self._library.api.nixlBind.nixlMismatchError as error:
            raise ProtocolMismatch(
                f"the peer's NIXL metadata is not understood: {error}; both ends need the same "
                f"release of NIXL"
            ) from None
        except self._library.errors as error:
            raise Unreachable(f"NIXL cannot reach the peer: {error}") from None

    def forget(self, name: str) -> None:
        """No new transfer to that agent; nothing when it is not known."""
        with contextlib.suppress(*self._library.errors):
            self._agent.remove_remote_agent(name)

    def list_of(self, rows: U64, peer: str = _HERE, kind: str = DRAM) -> Any:
        """Ranges [address, bytes, device] of ours or of `peer`, checked once. Raises Refused."""
        try:
            made = self._agent.prep_xfer_dlist(peer, rows, kind)
        except self._library.errors as error:
            raise self._refused(error) from None
        self._handles.add(made)
        return made

    def prepared(
        self, kind: str, near: Any, far: Any, which: Sequence[int] | np.ndarray[Any, Any]
    ) -> Any:
        """A handle for the elements `which` of two lists. Raises Refused, Unreachable."""
        indices = np.ascontiguousarray(which, dtype=np.int32)
        try:
            made = self._agent.make_prepped_xfer(_OPERATIONS[kind], near, indices, far, indices)
        except self._library.errors as error:
            raise self._refused(error) from None
        self._handles.add(made)
        return made

    def once(self, kind: str, near: U64, far: U64, whose: Far) -> Any:
        """A handle for ranges that are used once. Raises Refused, Unreachable."""
        agent = self._agent
        try:
            here, there = agent.get_xfer_descs(near, DRAM), agent.get_xfer_descs(far, whose.kind)
            made = agent.initialize_xfer(_OPERATIONS[kind], here, there, whose.agent)
        except self._library.errors as error:
            raise self._refused(error) from None
        self._handles.add(made)
        return made

    def post(self, handle: Any) -> bool:
        """Begins; True when it is done already. After an error bytes may still move."""
        return self._done(self._agent.transfer, handle)

    def look(self, handle: Any) -> bool:
        """True when it is done. After an error bytes may still move."""
        return self._done(self._agent.check_xfer_state, handle)

    def release(self, handle: Any) -> None:
        """Gives a handle or list back that is not at work."""
        self._handles.discard(handle)
        try:
            handle.release()
        except self._library.errors:
            handle._released = True
            handle._agent = None

    def destroy(self) -> bool:
        """Tears down the agent with all that it does; True: it is gone, and nothing moves. Takes up
        to a second when a peer hangs."""
        for handle in self._handles:
            # Not released: NIXL would free what UCX still works with.
            handle._released = True
            handle._agent = None
        self._handles = set()
        inner = weakref.ref(self._agent.agent)
        self._agent.agent = None
        return inner() is None

    def _done(self, call: Any, handle: Any) -> bool:
        try:
            state = call(handle)
        except self._library.errors as error:
            raise Unreachable(f"NIXL gave up: {error}") from None
        if state == "ERR":
            raise Unreachable("NIXL gave up without a reason")
        return bool(state == "DONE")

    def _refused(self, error: Exception) -> MoonpoolError:
        if isinstance(error, self._library.disconnected):
            return Unreachable(f"NIXL has lost the peer: {error}")
        if isinstance(error, self._library.not_found):
            return Refused(f"NIXL finds memory that is not registered at both ends: {error}")
        return Unreachable(f"NIXL does not begin: {error}")
