"""Transfers checked and resolved once, and begun as often as wanted."""

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from moonpool.core.errors import BadInput
from moonpool.transfer.base import Reuse, Transfer
from moonpool.transfer.layout import integers
from moonpool.transfer.notification import checked_message
from moonpool.transfer.op import Op
from moonpool.transfer.request import checked_deadline, require_open

if TYPE_CHECKING:
    from moonpool.transfer.engine import Engine


class Prepared:
    """Made by `Engine.prepare`. Thread-safe. `count` blocks, `nbytes` in all.

    A descriptor of a peer that restarted stays invalid: ops posted then fail with PeerRestarted.
    """

    def __init__(
        self, engine: "Engine", transfer: Transfer, via: str | None, deadline_s: float
    ) -> None:
        self.count = len(transfer.lengths)
        self.nbytes = transfer.nbytes
        self._engine = engine
        self._transfer = transfer._replace(reuse=Reuse(transfer))
        self._via = via
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._last: Op | None = None

    def post(
        self, which: Any = None, *, deadline: float | None = None, notify: bytes | None = None
    ) -> Op:
        """Begins it, or only the blocks at the positions `which` of its lists; `deadline` in
        seconds, by default the one it was prepared with; `notify` as for read() and write().

        Raises BadInput while the op posted before has not ended, for positions that it does not
        have or that come twice; Closed when an end was closed.
        """
        transfer = self._transfer
        deadline_s = self._deadline_s if deadline is None else checked_deadline(deadline)
        require_open(transfer.local, transfer.remote)
        if which is not None:
            transfer = self._part(which)
        if notify is not None:
            transfer = transfer._replace(notify=checked_message(notify, transfer.remote))
        with self._lock:
            if self._last is not None and not self._last.done():
                raise BadInput(f"{self._last!r} runs still; wait for it before the next post()")
            due_s = time.monotonic() + deadline_s
            self._last = self._engine.post(transfer._replace(deadline_s=due_s), self._via)
            return self._last

    def _part(self, which: Any) -> Transfer:
        at = integers(which, "positions")
        if at.size and not (0 <= int(at.min()) and int(at.max()) < self.count):
            raise BadInput(f"positions {which!r} are outside 0..{self.count - 1}")
        if len(np.unique(at)) != len(at):
            raise BadInput("a position comes twice; the block would be moved twice at once")
        at = at.astype(np.intp)
        lengths = self._transfer.lengths[at]
        return self._transfer._replace(
            local_offsets=self._transfer.local_offsets[at],
            remote_offsets=self._transfer.remote_offsets[at],
            lengths=lengths,
            nbytes=int(lengths.sum()),
            positions=at,
        )

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"<Prepared {self._transfer.kind} of {self.count} blocks, {self.nbytes} bytes>"
