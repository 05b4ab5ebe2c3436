"""What the two machines want done, and the times they go by. A session is one connection of a
decode rank to a prefill rank, numbered by its shell, never reused.
"""

from typing import NamedTuple

from moonpool.transfer.handoff.messages import Message


class Times(NamedTuple):
    """Seconds. A peer beats every `beat_s`; one not heard for `lease_s` is gone, and so is a
    transfer that its beats do not name. `expect_s`: how long prefill waits for the request behind
    a claim; `hold_s`: for the claim behind a request. `push_s`: a push's own deadline. `fence_s`:
    how long decode waits to be told that pushes have ended before it revokes its memory."""

    beat_s: float = 0.2
    lease_s: float = 0.8
    expect_s: float = 10.0
    hold_s: float = 10.0
    push_s: float = 2.0
    fence_s: float = 0.3


class Send(NamedTuple):
    """To the peer of this session, in order."""

    session: int
    message: Message


class Push(NamedTuple):
    """Write tokens [first, last) of `layer` into the session's memory; answer with pushed()."""

    push: int
    session: int
    transfer: str
    layer: int
    first: int
    last: int


class Release(NamedTuple):
    """Prefill's blocks of this transfer may be freed; nothing reads them any more. `ok`: decode
    has it all; otherwise `code` and `text` say why not."""

    transfer: str
    ok: bool
    code: str
    text: str


class Drop(NamedTuple):
    """Close the session; answer with session_gone() is not needed: it is gone already."""

    session: int
    text: str


class Progress(NamedTuple):
    """Every source has this layer up to `upto` tokens in decode's memory."""

    transfer: str
    layer: int
    upto: int


class Verify(NamedTuple):
    """Compare decode's memory with the sender's sums; answer with verified()."""

    session: int
    transfer: str
    crcs: tuple[int, ...]


class Revoke(NamedTuple):
    """Close the session and withdraw its memory; call session_gone() once no byte can come."""

    session: int
    text: str


class Settled(NamedTuple):
    """Decode's blocks are decode's again: no byte of this transfer is written any more. `ok`: they
    hold what prefill computed; otherwise their content is of no use."""

    transfer: str
    ok: bool
    code: str
    text: str


PrefillAction = Send | Push | Release | Drop
DecodeAction = Send | Progress | Verify | Revoke | Settled
