"""The ops that move bytes of one segment: who closes it ends them first."""

from types import TracebackType
from typing import Self

from moonpool.transfer.op import Op

SWEEP_OPS = 64


class OpenOps(dict[Op, None]):
    """Ops under way; those that have ended are forgotten now and then, some by themselves. A dict,
    so that threads that add and forget at the same time lose none."""

    def sweep(self) -> None:
        """Before one is added. To look at an op may call back whoever listens for its end."""
        if len(self) >= SWEEP_OPS:
            for op in list(self):
                if op.done():
                    self.pop(op, None)

    def end(self) -> None:
        """Cancels all and waits until each is quiet."""
        for op in list(self):
            self.pop(op, None)
            if op.cancel():
                op.wait()


class OwnEnd:
    """A segment of this process, with the ops that use it. A context manager; close() ends those
    first."""

    nbytes: int
    closed = False

    def __init__(self) -> None:
        self.open_ops = OpenOps()

    def hold(self, op: Op) -> None:
        """Makes close() end `op` first, so that the memory is quiet afterwards."""
        self.open_ops.sweep()
        self.open_ops[op] = None

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self.nbytes
