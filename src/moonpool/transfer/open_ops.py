"""The ops that move bytes of one segment: who closes it ends them first."""

from types import TracebackType
from typing import Self

from moonpool.transfer.op import Op

_SWEEP_OPS = 64


class OpenOps:
    """Ops under way; those that have ended are forgotten now and then, some by themselves. A dict,
    so that threads that add and forget at the same time lose none."""

    def __init__(self) -> None:
        self._ops: dict[Op, None] = {}

    def add(self, op: Op) -> None:
        """From here on end() ends `op`, too."""
        self._ops[op] = None

    def forget(self, op: Op) -> None:
        """It has ended."""
        self._ops.pop(op, None)

    def sweep(self) -> None:
        """Before each add(). To look at an op may call back whoever listens for its end."""
        if len(self._ops) >= _SWEEP_OPS:
            for op in list(self._ops):
                if op.done():
                    self.forget(op)

    def end(self) -> None:
        """Cancels all and waits until each is quiet."""
        for op in list(self._ops):
            self.forget(op)
            if op.cancel():
                op.wait()


class OwnEnd:
    """A segment of this process, with the ops that use it. A context manager; close() ends those
    first."""

    nbytes: int
    closed = False

    def __init__(self) -> None:
        self._open_ops = OpenOps()

    def hold(self, op: Op) -> None:
        """Makes close() end `op` first, so that the memory is quiet afterwards."""
        self._open_ops.sweep()
        self._open_ops.add(op)

    def let_go(self, op: Op) -> None:
        """For ops that say when they have ended."""
        self._open_ops.forget(op)

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
