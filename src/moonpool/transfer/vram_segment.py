"""A device's memory as a segment of blocks: this process cannot address it, so only the vram
transport reaches it, and no peer sees it (for those: Staging, or NIXL)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from moonpool.core.errors import BadInput, Closed
from moonpool.core.host import host_id
from moonpool.transfer.base import U8
from moonpool.transfer.cost import CostClass
from moonpool.transfer.layout import Layout
from moonpool.transfer.open_ops import OwnEnd
from moonpool.transfer.segment import check_name
from moonpool.transfer.topology import UNKNOWN_NODE, Location

if TYPE_CHECKING:
    from moonpool.transfer.staging import Event


class VramDevice(Protocol):
    """What the vram transport needs of a device's library. Copies are enqueued, and over when the
    event they give has passed; `memory` is what `allocate` or `adopt` gave."""

    name: str

    def allocate(self, nbytes: int) -> Any: ...

    def adopt(self, tensor: Any) -> Any:
        """The bytes of somebody's tensor, in place. Raises BadInput."""
        ...

    def host(self, array: U8) -> Any:
        """uint8[n] of this process as the library takes it, the same memory."""
        ...

    def current_stream(self, memory: Any) -> Any: ...

    def to_host(self, tensor: Any, host: Any, offset: int, stream: Any) -> Event: ...

    def to_device(self, host: Any, offset: int, tensor: Any, stream: Any) -> Event: ...


class VramSegment(OwnEnd):
    """`nbytes` bytes on a device. Made by `Engine.vram`. A context manager; close() ends its ops
    first, and lets go of the memory."""

    cost_class = CostClass.VRAM

    def __init__(
        self,
        device: VramDevice,
        memory: Any,
        nbytes: int,
        *,
        name: str = "",
        writable: bool = True,
        on_close: Callable[[VramSegment], None] | None = None,
    ) -> None:
        super().__init__()
        self.device = device
        self.memory: Any = memory
        self.nbytes = nbytes
        self.name = check_name(name or device.name)
        self.writable = writable
        self._on_close = on_close

    @property
    def location(self) -> Location:
        """This host and the device; which node of the host is near to it is not known."""
        return Location(host_id(), UNKNOWN_NODE, self.device.name, self.cost_class)

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
        """A layout of equal blocks. Raises BadInput."""
        return Layout(self, block_bytes, stride, offset, name, planes, plane_stride)

    def require_open(self) -> None:
        if self.closed:
            raise Closed(f"segment '{self.name}' of device memory is closed; make it again")

    def close(self) -> None:
        """Cancels what still moves here, and waits until that is quiet."""
        if self.closed:
            return
        self.closed = True
        self.open_ops.end()
        self.memory = None
        if self._on_close is not None:
            self._on_close(self)

    def __repr__(self) -> str:
        traits = [word for word in ("writable", "closed") if getattr(self, word)]
        traits.append(self.device.name)
        return f"<VramSegment '{self.name}': {self.nbytes} bytes, {', '.join(traits)}>"


def checked_size(nbytes: Any) -> int:
    """Raises BadInput."""
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or not 0 < nbytes < 2**62:
        raise BadInput(f"{nbytes!r} is no size of device memory; give bytes, or a tensor")
    return nbytes
