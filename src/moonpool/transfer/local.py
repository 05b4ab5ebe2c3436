"""The local transport: both segments belong to this process. The reference for all others."""

from moonpool.transfer.base import Transfer
from moonpool.transfer.copying import CopyOp, CopyRunner
from moonpool.transfer.segment import Segment


class LocalTransport:
    """memcpy with CRC-32C; `transfer.remote` is a Segment too."""

    name = "local"

    def __init__(self, runner: CopyRunner | None = None) -> None:
        self._runner = runner or CopyRunner()

    def submit(self, transfer: Transfer) -> CopyOp:
        assert isinstance(transfer.remote, Segment), transfer.remote
        op = CopyOp(transfer, self.name, transfer.remote.buffer)
        self._runner.start(op)
        return op

    def close(self) -> None:
        self._runner.close()
