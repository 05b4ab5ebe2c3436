"""The one place where errors of the native endpoint become errors of our tree."""

import errno

from moonpool import _core
from moonpool.core.errors import (
    BadInput,
    Closed,
    DeadlineExceeded,
    MoonpoolError,
    ProtocolMismatch,
    Refused,
    SegmentSpace,
    Unreachable,
)

NATIVE_ERRORS = (OSError, RuntimeError, ValueError)
_NO_ROOM = (errno.ENOMEM, errno.ENOSPC, errno.EFBIG)


def translated(error: Exception, what: str) -> MoonpoolError:
    """What `error`, raised by the endpoint while doing `what`, is called with us."""
    text = f"{what}: {error}"
    if isinstance(error, _core.EndpointClosedError):
        return Closed(text)
    if isinstance(error, _core.RefusedError):
        return (ProtocolMismatch if "protocol version" in str(error) else Refused)(text)
    if isinstance(error, OSError):
        if error.errno in _NO_ROOM:
            return SegmentSpace(text)
        return (DeadlineExceeded if error.errno == errno.ETIMEDOUT else Unreachable)(text)
    return BadInput(text) if isinstance(error, ValueError) else Unreachable(text)
