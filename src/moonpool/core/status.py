"""The status byte of the data plane, one for each block of a call."""

from enum import IntEnum


class BlockStatus(IntEnum):
    """What became of one block; the same byte in native/status.hpp and on the wire."""

    OK = 0
    MOVED = 1
    CORRUPT = 2
    BOUNDS = 3
    NO_SPACE = 4
    NO_SLOT = 5
    STALE_TERM = 6
    EXPIRED = 7
    UNREACHABLE = 8
    REFUSED = 9
    CANCELLED = 10
    NOT_FOUND = 11
    TOO_BIG = 12
    BUSY = 13
    PROTOCOL = 14
    INTERNAL = 15
