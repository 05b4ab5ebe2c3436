"""What peers, rails and prepared transfers ask of their engine."""

import itertools
import math
import time
import weakref
from typing import TYPE_CHECKING

from moonpool import _core
from moonpool.core.errors import (
    Closed,
    DeadlineExceeded,
    MoonpoolError,
    PeerRestarted,
    Refused,
    TransferError,
    Unreachable,
)
from moonpool.core.sections import TransferConfig
from moonpool.transfer.base import OpState, Transfer, Transport
from moonpool.transfer.directory import EngineEntry, EtcdDirectory
from moonpool.transfer.dispatch import dispatch
from moonpool.transfer.link import Link
from moonpool.transfer.native_errors import NATIVE_ERRORS, translated
from moonpool.transfer.notifying import Notifier, NotifyingOp
from moonpool.transfer.op import Op, Tally
from moonpool.transfer.registry import Registry
from moonpool.transfer.relay import RelayedOp
from moonpool.transfer.segment import Segment

if TYPE_CHECKING:
    from moonpool.transfer.engine import Engine

# The engines of this process by epoch: a peer found here is reached by memcpy.
ENGINES: "weakref.WeakValueDictionary[int, Engine]" = weakref.WeakValueDictionary()

# A name that leads nowhere is looked up again after so long.
_ASK_AGAIN_S = 0.05


class PeerCalls:
    """What Engine inherits."""

    config: TransferConfig
    directory: EtcdDirectory | None
    _endpoint: _core.Endpoint
    _registry: Registry
    _transports: dict[str, Transport]
    tally: Tally
    _lives: "itertools.count[int]"
    _notifier: Notifier

    def open_link(self, address: str, timeout_s: float) -> Link:
        """For peers: a fresh connection. Raises TransferError."""
        self._require_open()
        return Link(self._endpoint, address, timeout_s, self.config.shared_memory)

    def open_named(self, name: str, timeout_s: float) -> Link:
        """For peers: a fresh connection to the engine that the directory has under `name`; it is
        asked again until that one answers. Raises DeadlineExceeded, Refused, ProtocolMismatch."""
        assert self.directory is not None
        until_s = time.monotonic() + timeout_s
        why = "nobody is announced under it"
        while (left_s := until_s - time.monotonic()) > 0:
            self._require_open()
            try:
                if (entry := self.directory.find(name, left_s)) is None:
                    why = "nobody is announced under it"
                else:
                    return self._open_entry(entry, until_s)
            except (Refused, Closed):
                raise
            except TransferError as error:
                # Gone, not there yet, or an entry that its dead engine left behind.
                why = str(error)
            time.sleep(max(0.0, min(_ASK_AGAIN_S, until_s - time.monotonic())))
        raise DeadlineExceeded(f"engine '{name}' was not reached within {timeout_s:g} s: {why}")

    def _open_entry(self, entry: EngineEntry, until_s: float) -> Link:
        lost: TransferError | None = None
        for address in entry.addresses:
            try:
                link = self.open_link(address, max(0.001, until_s - time.monotonic()))
            except Unreachable as error:
                lost = error
                continue
            if link.epoch == entry.epoch:
                return link
            link.close()
            lost = PeerRestarted(f"another process than engine '{entry.name}' answers at {address}")
        assert lost is not None
        raise lost

    def dial(self, address: str, timeout_s: float) -> _core.Connection:
        """For rails and heartbeats: a bare connection. Raises TransferError."""
        try:
            return self._endpoint.connect(address, math.ceil(timeout_s * 1000))
        except NATIVE_ERRORS as error:
            raise translated(error, f"cannot connect to {address}") from None

    def life_name(self) -> str:
        """For peers: a name that no other life of a peer has."""
        return f"life-{next(self._lives)}"

    def lives_here(self, epoch: int) -> bool:
        """For peers: the engine with this epoch is one of this process."""
        return epoch in ENGINES

    def shared_with(self, epoch: int) -> dict[int, Segment]:
        """For peers: the visible segments, by region, of the engine with this epoch if it lives in
        this process; the dict changes as that engine's segments do."""
        engine = ENGINES.get(epoch)
        return {} if engine is None else engine._registry.regions

    def post(self, transfer: Transfer, via: str | None) -> Op:
        """For prepared transfers: begins one that was checked."""
        self._require_open()
        op = dispatch(self._transports, transfer, via)
        if transfer.notify is not None:
            op = NotifyingOp(transfer, self._notifier, op)
        op.count_in(self.tally)
        if not op.last_state.terminal:
            transfer.local.hold(op)
            # A file holds its ops itself, before its descriptor could be closed under them.
            if isinstance(transfer.remote, Segment):
                transfer.remote.hold(op)
        return op

    def relay(self, op: RelayedOp, via: str | None, error: MoonpoolError | None) -> None:
        """For peers: the connection `op` waited for is there, or cannot be had."""
        if error is not None:
            typed = error if isinstance(error, TransferError) else Unreachable(str(error))
            op.settle(OpState.FAILED, error=typed, only_from=OpState.QUEUED)
        elif op.post():
            op.relay(dispatch(self._transports, op.transfer, via, again=True))

    def _require_open(self) -> None:
        raise NotImplementedError
