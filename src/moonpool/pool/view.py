"""Zero-copy views: a pinned window on the object where it lies."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from moonpool.pool.ports import Status
from moonpool.pool.results import Hit, Miss

if TYPE_CHECKING:
    from moonpool.pool.client_state import Placement
    from moonpool.pool.pins import PinBudget
    from moonpool.pool.ports import View as Pin


_MOVED, _NOT_HERE = -1 - Status.MOVED, -1 - Status.BUSY


class View:
    """Use as a context manager: `with pool.view(key) as data` gives a read-only memoryview, or
    None on a miss (`miss` says why). The pin proves the generation: the bytes stay while the view
    is open, also if the object is removed or replaced meanwhile. Closing fails with BufferError
    while slices of it are alive."""

    def __init__(
        self, data: memoryview | None, miss: Miss | None, pin: Pin | None, pins: PinBudget | None
    ) -> None:
        self.data = data
        self.miss = miss
        self._pin = pin
        self._pins = pins
        self._size = data.nbytes if data is not None else 0

    @property
    def crc(self) -> int:
        """CRC-32C that the object was stored with; `data` was compared with it only if asked for.
        0 without a pin: a copy was."""
        return self._pin.crc if self._pin is not None else 0

    @property
    def zero_copy(self) -> bool:
        """False: the object lies elsewhere or in several extents, and `data` is a copy."""
        return self._pin is not None

    def close(self) -> None:
        """Raises BufferError while slices are alive: `data` is gone then, close again later."""
        if self.data is None:
            return
        self.data.release()
        if self._pin is not None:
            self._pin.release()
        self.data = None
        if self._pin is not None and self._pins is not None:
            self._pins.give_back(self._size)
        self._pin = None

    def __enter__(self) -> memoryview | None:
        return self.data

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Forgotten views give their pin back; one whose slices live on is kept by those slices.
        if self.data is not None:
            try:
                self.close()
            except BufferError:
                if self._pin is not None and self._pins is not None:
                    self._pins.give_back(self._size)  # nobody will tell us when the slices end


def pinned_view(placement: Placement, pins: PinBudget, verify: bool) -> View | int:
    """A view on the object where it lies, of the first copy here that is in one piece; or what the
    first one says, -1 - status: it cannot be pinned."""
    pins.take(placement.size)
    why = _NOT_HERE
    for replica in placement.replicas:
        if not replica.port.local:
            break  # those that are mapped here come first
        pin = replica.port.pin(replica.slot, replica.generation, verify)
        if not isinstance(pin, int):
            return View(memoryview(pin), None, pin, pins)  # type: ignore[arg-type]
        why = pin if why == _NOT_HERE else why
        if pin == _MOVED:
            break  # the others are of a placement that is over, too
    pins.give_back(placement.size)
    return why


def copied_view(result: Hit | Miss) -> View:
    """The same on bytes of one's own, or on nothing."""
    if isinstance(result, Miss):
        return View(None, result, None, None)
    assert result.data is not None
    return View(memoryview(result.data), None, None, None)
