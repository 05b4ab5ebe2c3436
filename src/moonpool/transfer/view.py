"""A read-only look at a peer's bytes: in place on the same host, a copy elsewhere."""

from types import TracebackType
from typing import NamedTuple, Self


class View(NamedTuple):
    """`data` is a read-only memoryview of unsigned bytes; `copied` says that it is a copy, made
    over `transport`. Bytes in place change when their owner changes them. A context manager."""

    data: memoryview
    transport: str
    copied: bool

    def release(self) -> None:
        """Ends the view; BufferError while something derived from `data` is alive."""
        self.data.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
