"""An op that waits for its peer to be reached again, then becomes what a transport makes of it."""

from moonpool.transfer.base import OpState, Transfer
from moonpool.transfer.op import Op, expired, known


class RelayedOp(Op):
    """QUEUED until relay(); then it mirrors the inner op."""

    __slots__ = ("_cancel_wanted", "_inner")

    def __init__(self, transfer: Transfer) -> None:
        super().__init__(transfer, "none")
        self._inner: Op | None = None
        self._cancel_wanted = False

    def relay(self, inner: Op) -> None:
        """`inner` does the work from now on."""
        self.transport = inner.transport
        self._inner = inner
        if self._cancel_wanted:
            inner.cancel()
        inner.add_done_callback(self._mirror)

    def expire(self) -> None:
        """Ends an op that nobody has posted yet."""
        self.settle(OpState.EXPIRED, error=expired(self), only_from=OpState.QUEUED)

    def _mirror(self, inner: Op) -> None:
        result = inner.result
        crc = None if result.crc is None else known(result.crc)
        self.settle(result.state, status=result.status, crc=crc, error=result.error)

    def _cancel_posted(self) -> None:
        # Either this thread sees the inner op, or relay() sees the wish.
        self._cancel_wanted = True
        if self._inner is not None:
            self._inner.cancel()
