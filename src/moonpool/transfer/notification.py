"""What one engine tells another about a transfer that has ended, and how it is told apart from one
that was told before. Pure.

A notification about bytes that arrived is sent when they stand in the receiver's memory, or have
left it. One about a transfer that did not get there says so, once nothing of it lands any more.
"""

from collections import OrderedDict, deque
from typing import Any, Final

import msgspec

from moonpool.core.errors import BadFrame, BadInput
from moonpool.transfer.base import OpState
from moonpool.transfer.segment import RemoteSegment

MESSAGE_BYTES_MAX: Final = 4096
_ERROR_CHARS: Final = 300
_SENDERS_MAX: Final = 256
_NUMBERS_MAX: Final = 1024


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """`message` is the sender's own; `state` is how the transfer ended, DONE when all of its bytes
    arrived, `error` why if not; `kind` is "read" or "write" as the sender called it, of `segment`
    at the receiver, and `nbytes` what is known to have arrived. `sender` is the epoch of the
    engine that sent it, `number` rises with each one of a sender."""

    sender: int
    number: int
    kind: str
    segment: str
    state: OpState
    nbytes: int
    message: bytes
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.state is OpState.DONE


_decoder = msgspec.msgpack.Decoder(Notification)


def encoded(notification: Notification) -> bytes:
    """For the wire; fits into what an inbox takes."""
    short = msgspec.structs.replace(notification, error=notification.error[:_ERROR_CHARS])
    return msgspec.msgpack.encode(short)


def decoded(raw: bytes) -> Notification:
    """Raises BadFrame for what is none."""
    try:
        return _decoder.decode(raw)
    except msgspec.MsgspecError as error:
        raise BadFrame(f"a notification that is not understood: {error}") from None


def checked_message(message: Any, remote: Any) -> bytes:
    """A message as bytes; raises BadInput for what is none, and where nobody would hear of it."""
    if not isinstance(message, bytes | bytearray | memoryview):
        raise BadInput(f"notify= takes bytes, not {type(message).__name__}")
    text = bytes(message)
    if len(text) > MESSAGE_BYTES_MAX:
        raise BadInput(f"a message of {len(text)} bytes; notify= takes {MESSAGE_BYTES_MAX} at most")
    if not isinstance(remote, RemoteSegment):
        raise BadInput(f"{remote!r} is of this process: notify= tells a peer")
    return text


class Known:
    """Which notifications were seen: one whose answer was lost is sent again over another rail."""

    def __init__(self) -> None:
        self._senders: OrderedDict[int, deque[int]] = OrderedDict()

    def again(self, notification: Notification) -> bool:
        """True if it was here before; from now on it was."""
        numbers = self._senders.pop(notification.sender, None) or deque(maxlen=_NUMBERS_MAX)
        self._senders[notification.sender] = numbers
        if len(self._senders) > _SENDERS_MAX:
            self._senders.popitem(last=False)
        if notification.number in numbers:
            return True
        numbers.append(notification.number)
        return False
