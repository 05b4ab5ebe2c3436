"""What travels on the side channel, after the token handshake of core.

Decode connects to prefill and says Hello first; prefill answers Hello or Refuse. Then

    decode -> prefill     Claim, Announce, Cancel, Beat
    prefill -> decode     Layer, Complete, Ended, Beat

Beats go both ways and name the transfers their sender still stands by: that is what renews a
lease. Layer by layer the bytes themselves go over the data plane, never here.
"""

from typing import Final

import msgspec

from moonpool.core.errors import BadFrame
from moonpool.transfer.handoff.layout import KVLayout

PROTOCOL_VERSION: Final = 1
MAX_FRAME: Final = 4 << 20
TRANSFER_ID_CHARS_MAX: Final = 128


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Memory of one part of one layer: `region` as the data plane numbers it, then where block 0
    begins and the bytes from a block to the next."""

    region: int
    nbytes: int
    offset: int
    stride: int


class Hello(msgspec.Struct, frozen=True, tag="hello", kw_only=True):
    """Who speaks. `epoch` is drawn at the start of the process. Decode adds where its data plane
    listens, that plane's epoch, and its memory: `layers[layer][part]`."""

    protocol: int
    engine: str
    epoch: int
    layout: KVLayout
    beat_ms: int
    lease_ms: int
    data: str = ""
    data_epoch: int = 0
    blocks: int = 0
    layers: tuple[tuple[Part, ...], ...] = ()


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """No session: `code` names a class of core.errors."""

    code: str
    text: str


class Claim(msgspec.Struct, frozen=True, tag="claim"):
    """Hold this transfer's blocks: decode has the request and no blocks for it yet."""

    transfer: str


class Announce(msgspec.Struct, frozen=True, tag="announce"):
    """Blocks are reserved: push tokens from `first_token` on into them. `blocks` is i32 LE;
    `prompt` tells prompts of equal length apart, when both sides give one."""

    transfer: str
    first_token: int
    tokens: int
    blocks: bytes
    prompt: str = ""


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Not wanted any more; answered by Ended."""

    transfer: str


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """The sender lives and stands by these transfers; prefill tells apart those whose blocks it
    was told (`active`) and those it knows a claim of (`claimed`)."""

    active: tuple[str, ...]
    claimed: tuple[str, ...] = ()


class Layer(msgspec.Struct, frozen=True, tag="layer"):
    """Tokens before `upto` of this layer stand in decode's memory."""

    transfer: str
    layer: int
    upto: int


class Complete(msgspec.Struct, frozen=True, tag="complete"):
    """All of it stands in decode's memory, and nothing of this transfer moves any more. `crcs`
    holds the CRC-32C of the CRC column of each layer, or nothing."""

    transfer: str
    crcs: tuple[int, ...] = ()


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """No bytes will come. With `quiet` none can: every push had been answered. Without, decode
    has to see to it by itself."""

    transfer: str
    code: str
    text: str
    quiet: bool


Message = Hello | Refuse | Claim | Announce | Cancel | Beat | Layer | Complete | Ended
ToPrefill = Claim | Announce | Cancel | Beat
ToDecode = Layer | Complete | Ended | Beat

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(payload: bytes) -> Message:
    """Raises BadFrame for anything but one of the messages above."""
    try:
        message = _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise BadFrame(f"side channel: a message that cannot be read: {error}") from None
    transfer = getattr(message, "transfer", "")
    if len(transfer) > TRANSFER_ID_CHARS_MAX:
        raise BadFrame(f"side channel: a transfer id of {len(transfer)} characters")
    return message
