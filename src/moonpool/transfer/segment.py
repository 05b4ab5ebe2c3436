"""Memory that can take part in transfers: our own (Segment) and a peer's (RemoteSegment)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from moonpool.core.errors import BadInput, Closed
from moonpool.core.host import host_id
from moonpool.transfer.base import U8
from moonpool.transfer.cost import CostClass
from moonpool.transfer.flush import FlushHook
from moonpool.transfer.layout import Layout
from moonpool.transfer.open_ops import OwnEnd
from moonpool.transfer.tensors import tensor_bytes
from moonpool.transfer.topology import SOMEWHERE, UNKNOWN_NODE, Location, place_of

if TYPE_CHECKING:
    from moonpool.transfer.peer import Peer

NAME_BYTES_MAX = 255


class Segment(OwnEnd):
    """A contiguous range of this process's memory, registered with one engine.

    `buffer` is a memoryview of unsigned bytes, `array` the same memory as numpy uint8[nbytes];
    both stay valid as long as somebody holds them. `writable` says whether peers may write,
    `shared` whether other processes of this host can map it; `region` is 0 for memory that no peer
    sees. `cost_class` is the kind of memory, `flush` what must happen around loads and stores where
    hardware does not keep them coherent. Use it as a context manager, or call close().
    """

    cost_class: CostClass = CostClass.DRAM
    flush: FlushHook | None = None
    device = "cpu"

    def __init__(
        self,
        memory: Any,
        *,
        name: str,
        writable: bool = True,
        shared: bool = False,
        region: int = 0,
        on_close: "Callable[[Segment], None] | None" = None,
        on_layout: "Callable[[], None] | None" = None,
    ) -> None:
        super().__init__()
        self.array = as_bytes(memory, writable=writable)
        self.buffer = self.array.data
        self.name = check_name(name)
        self.nbytes = self.array.nbytes
        self.writable = writable
        self.shared = shared
        self.region = region
        self.layouts: dict[str, Layout] = {}
        self._node = UNKNOWN_NODE
        self._on_close = on_close
        self._on_layout = on_layout

    @property
    def location(self) -> Location:
        """Where the memory is. Its NUMA node is known once some of it has been touched."""
        if self._node == UNKNOWN_NODE and self.device == "cpu" and self.nbytes:
            self._node = place_of(self.array.ctypes.data)
        return Location(host_id(), self._node, self.device, self.cost_class)

    def blocks(
        self,
        block_bytes: int,
        stride: int | None = None,
        offset: int = 0,
        name: str = "",
        *,
        planes: int = 1,
        plane_stride: int | None = None,
    ) -> Layout:
        """A layout of equal blocks, all in bytes; both strides default to `block_bytes`.

        A named one is published: peers find it as `peer.layout(name)`. Raises BadInput.
        """
        name = check_name(name) if name else ""
        layout = Layout(self, block_bytes, stride, offset, name, planes, plane_stride)
        if name:
            self._publish(layout)
        return layout

    def _publish(self, layout: Layout) -> None:
        before = dict(self.layouts)
        self.layouts[layout.name] = layout
        try:
            if self._on_layout is not None:
                self._on_layout()
        except BadInput:
            self.layouts = before
            raise

    def require_open(self) -> None:
        if self.closed:
            raise Closed(f"segment '{self.name}' is closed; allocate or register it again")

    def close(self) -> None:
        """Cancels what still moves here, waits until that is quiet, and ends the registration."""
        if self.closed:
            return
        self.closed = True
        self.open_ops.end()
        if self._on_close is not None:
            self._on_close(self)

    def __repr__(self) -> str:
        traits = [word for word in ("writable", "shared", "closed") if getattr(self, word)]
        return f"<Segment '{self.name}': {self.nbytes} bytes, {', '.join(traits) or 'read-only'}>"


class RemoteSegment:
    """A peer's segment as its directory described it under one epoch; immutable.

    When the peer comes back with another epoch, ops on this object fail with PeerRestarted: take
    the new one from `peer.segment(name)`.
    """

    __slots__ = ("epoch", "location", "name", "nbytes", "peer", "region", "shared", "writable")

    def __init__(
        self,
        peer: "Peer",
        *,
        epoch: int,
        region: int,
        name: str,
        nbytes: int,
        writable: bool,
        shared: bool,
        location: Location = SOMEWHERE,
    ) -> None:
        self.location = location
        self.peer = peer
        self.epoch = epoch
        self.region = region
        self.name = name
        self.nbytes = nbytes
        self.writable = writable
        self.shared = shared

    @property
    def cost_class(self) -> CostClass:
        """What kind of memory the peer said it is."""
        return self.location.cost_class

    def blocks(
        self,
        block_bytes: int,
        stride: int | None = None,
        offset: int = 0,
        name: str = "",
        *,
        planes: int = 1,
        plane_stride: int | None = None,
    ) -> Layout:
        """A layout of equal blocks, declared on this side. Raises BadInput."""
        return Layout(self, block_bytes, stride, offset, name, planes, plane_stride)

    def __len__(self) -> int:
        return self.nbytes

    def __repr__(self) -> str:
        return f"<RemoteSegment '{self.name}' at {self.peer.address}: {self.nbytes} bytes>"


def as_bytes(memory: Any, *, writable: bool) -> U8:
    """`memory` (numpy, a CPU tensor, anything with the buffer protocol) as uint8[n] without a copy.

    Raises BadInput when that is impossible: not contiguous, read-only though `writable`, no buffer.
    """
    if (tensor := tensor_bytes(memory)) is not None:
        memory = tensor
    try:
        array = memory if isinstance(memory, np.ndarray) else np.frombuffer(memory, dtype=np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        if _is_empty(memory):
            return np.zeros(0, dtype=np.uint8)
        raise BadInput(f"cannot use a {type(memory).__name__} as memory: {error}") from error
    if not array.flags.c_contiguous:
        raise BadInput(
            f"array of shape {array.shape} is not C-contiguous; numpy.ascontiguousarray copies it"
        )
    if array.dtype.hasobject:
        raise BadInput(f"array of dtype {array.dtype} holds Python objects, not bytes")
    if writable and not array.flags.writeable:
        raise BadInput("the memory is read-only; register it with writable=False")
    return array.reshape(-1).view(np.uint8)


def _is_empty(memory: Any) -> bool:
    # numpy refuses to look into an empty buffer; for us it is a segment of no bytes.
    try:
        return memoryview(memory).nbytes == 0
    except TypeError:
        return False


def check_name(name: str) -> str:
    """A usable segment or layout name; raises BadInput."""
    encoded = name.encode(errors="replace") if isinstance(name, str) else b""
    if not 1 <= len(encoded) <= NAME_BYTES_MAX or encoded != name.encode(errors="surrogatepass"):
        raise BadInput(f"name {name!r} must be a text of 1..{NAME_BYTES_MAX} bytes")
    return name
