"""The shm transport: one-sided copies in memory that a peer of this host shares with us.

The peer takes no part: it may be busy or stopped. That it died is seen on the connection.
"""

from moonpool.core.errors import Unreachable
from moonpool.transfer.base import OpState, Transfer
from moonpool.transfer.copying import CopyOp, CopyRunner
from moonpool.transfer.op import Op
from moonpool.transfer.segment import RemoteSegment


class ShmTransport:
    """Copies between our memory and mappings the peers hold ready."""

    name = "shm"

    def __init__(self, runner: CopyRunner) -> None:
        self._runner = runner

    def submit(self, transfer: Transfer) -> Op:
        remote = transfer.remote
        assert isinstance(remote, RemoteSegment), remote
        memory = remote.peer.mapping(remote)
        if memory is None:
            op = Op(transfer, self.name)
            op.settle(OpState.FAILED, error=Unreachable(f"{remote!r} is not mapped here"))
            return op
        copy = CopyOp(transfer, self.name, memory)
        self._runner.start(copy)
        return copy

    def close(self) -> None:
        self._runner.close()
