"""The local transport: both segments belong to this process. The reference for all others."""

from moonpool.core.errors import Unreachable
from moonpool.transfer.base import OpState, Transfer
from moonpool.transfer.copying import CopyOp, CopyRunner
from moonpool.transfer.op import Op
from moonpool.transfer.segment import RemoteSegment, Segment


class LocalTransport:
    """memcpy with CRC-32C; `transfer.remote` is a Segment, or that of a peer in this process."""

    name = "local"

    def __init__(self, runner: CopyRunner | None = None) -> None:
        self._runner = runner or CopyRunner()

    def submit(self, transfer: Transfer) -> Op:
        remote = transfer.remote
        own: object = remote
        if isinstance(remote, RemoteSegment):
            own = remote.peer.local_segment(remote)
        if not isinstance(own, Segment):
            op = Op(transfer, self.name)
            op.settle(OpState.FAILED, error=Unreachable(f"{remote!r} was closed a moment ago"))
            return op
        copy = CopyOp(transfer, self.name, own.buffer)
        self._runner.start(copy)
        return copy

    def close(self) -> None:
        self._runner.close()
