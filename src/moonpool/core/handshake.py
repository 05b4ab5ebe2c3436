"""Who may speak: a challenge answered by an HMAC of the token, both ways, before any message.

    client                                 server
      HELLO      nonce, role, name    ->
                                      <-     CHALLENGE  nonce
      PROOF      mac of the client    ->     checks it: the client holds the token
                                      <-     WELCOME    mac of the server, name, or REFUSAL
      checks it: the server holds the token too

Each mac covers a label of its side and both first payloads, so that it can be neither replayed
nor reflected. Pure state machines: frames in, frames out; nonces are arguments.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Literal, TypeVar

import msgspec

from moonpool.core.errors import (
    BadFrame,
    MoonpoolError,
    ProtocolMismatch,
    Refused,
    error_from_code,
)
from moonpool.core.wire import Frame, Kind

NONCE_BYTES = 32
NAME_CHARS_MAX = 256

Role = Literal["client", "node"]


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """Who connects. `software` is its release, for messages only; `host_id` is equal on one host
    (see host.py), '' when not told."""

    nonce: bytes
    role: Role
    name: str
    software: str
    host_id: str = ""
    versions: tuple[int, int] = (1, 1)  # of messages it speaks, the oldest and the newest


class Challenge(msgspec.Struct, array_like=True, frozen=True):
    nonce: bytes


class Proof(msgspec.Struct, array_like=True, frozen=True):
    mac: bytes


class Welcome(msgspec.Struct, array_like=True, frozen=True):
    """`unix` is the path of a socket on which `instance`, this very process, listens as well: a
    shorter way for peers on its host. Empty where there is none."""

    mac: bytes
    name: str
    software: str
    unix: str = ""
    instance: bytes = b""
    version: int = 1  # of the messages that follow


class Refusal(msgspec.Struct, array_like=True, frozen=True):
    """Why not: `code` names a class of core.errors."""

    code: str
    text: str


T = TypeVar("T")


def prove(token: str, side: Literal["client", "server"], hello: bytes, challenge: bytes) -> bytes:
    """HMAC-SHA256 under the token over the side and both payloads, each with its length."""
    text = b"moonpool-handshake-1 " + side.encode()
    for payload in (hello, challenge):
        text += len(payload).to_bytes(4, "little") + payload
    return hmac.new(token.encode(), text, hashlib.sha256).digest()


class ClientHandshake:
    """States: new -> said hello -> proved -> welcomed. Any error ends it; close the connection."""

    def __init__(
        self,
        token: str,
        role: Role,
        name: str,
        software: str,
        nonce: bytes,
        host_id: str = "",
        versions: tuple[int, int] = (1, 1),
    ) -> None:
        self._token = token
        self._versions = versions
        self._hello = msgspec.msgpack.encode(
            Hello(_checked(nonce), role, name, software, host_id, versions)
        )
        self._challenge = b""
        self.welcome: Welcome | None = None

    def start(self) -> Frame:
        return Frame(Kind.HELLO, self._hello)

    def receive(self, frame: Frame) -> Frame | None:
        """The answer to `frame`, None once welcomed. Raises what the server refused with, Refused
        when the server does not know the token, BadFrame for frames out of turn."""
        if frame.kind == Kind.REFUSAL:
            raise _refused(_decode(frame, Refusal))
        if frame.kind == Kind.CHALLENGE and not self._challenge:
            _checked(_decode(frame, Challenge).nonce)
            self._challenge = frame.payload
            mac = prove(self._token, "client", self._hello, self._challenge)
            return Frame(Kind.PROOF, msgspec.msgpack.encode(Proof(mac)))
        if frame.kind == Kind.WELCOME and self._challenge and self.welcome is None:
            self._finish(_decode(frame, Welcome))
            return None
        raise BadFrame(f"handshake: the server sent {frame.kind.name} out of turn")

    def _finish(self, welcome: Welcome) -> None:
        mac = prove(self._token, "server", self._hello, self._challenge)
        if not hmac.compare_digest(mac, welcome.mac):
            raise Refused("the server does not know the token; is the address the right one?")
        if not self._versions[0] <= welcome.version <= self._versions[1]:
            raise ProtocolMismatch(_no_common(self._versions, welcome.version, welcome.software))
        self.welcome = welcome


class ServerHandshake:
    """States: waiting for hello -> challenged -> accepted. Any error ends it: send `refusal` of
    the error, then close the connection."""

    def __init__(
        self,
        token: str,
        name: str,
        software: str,
        nonce: bytes,
        unix: str = "",
        instance: bytes = b"",
        versions: tuple[int, int] = (1, 1),
        tenants: Mapping[str, str] | None = None,
    ) -> None:
        """`tenants`: further tokens that open the door, by name; `tenant` says whose it was."""
        self._tokens = [("", token), *(tenants or {}).items()]
        self.tenant = ""
        self._versions = versions
        self.version = 1  # the newest that both speak, once they have met
        self._tell = (name, software, unix, instance)
        self._challenge = msgspec.msgpack.encode(Challenge(_checked(nonce)))
        self._hello_payload = b""
        self.hello: Hello | None = None
        self.accepted = False

    def receive(self, frame: Frame) -> Frame:
        """The answer to `frame`; `accepted` is true once the answer is the welcome.

        Raises Refused (wrong token) and BadFrame (out of turn, malformed).
        """
        if frame.kind == Kind.HELLO and self.hello is None:
            self.hello = _decode(frame, Hello)
            _checked(self.hello.nonce)
            if max(len(self.hello.name), len(self.hello.host_id)) > NAME_CHARS_MAX:
                raise BadFrame(f"handshake: the peer's name is over {NAME_CHARS_MAX} characters")
            self.version = self._agree(self.hello)
            self._hello_payload = frame.payload
            return Frame(Kind.CHALLENGE, self._challenge)
        if frame.kind == Kind.PROOF and self.hello is not None and not self.accepted:
            return self._judge(_decode(frame, Proof))
        raise BadFrame(f"handshake: the client sent {frame.kind.name} out of turn")

    def _agree(self, hello: Hello) -> int:
        oldest, newest = hello.versions
        version = min(newest, self._versions[1])
        if version < max(oldest, self._versions[0]):
            raise ProtocolMismatch(_no_common(self._versions, newest, hello.software))
        return version

    def _judge(self, proof: Proof) -> Frame:
        token: str | None = None
        for name, one in self._tokens:  # all of them: the time does not tell which it was
            mac = prove(one, "client", self._hello_payload, self._challenge)
            if hmac.compare_digest(mac, proof.mac):
                self.tenant, token = name, one
        if token is None:
            raise Refused("wrong token; set MOONPOOL_TOKEN to the token of the cluster")
        assert self.hello is not None
        if self.tenant and self.hello.role != "client":
            raise Refused("a tenant's token is for clients; nodes show the cluster's")
        self.accepted = True
        mac = prove(token, "server", self._hello_payload, self._challenge)
        welcome = Welcome(mac, *self._tell, self.version)
        return Frame(Kind.WELCOME, msgspec.msgpack.encode(welcome))


def refusal(error: MoonpoolError) -> Frame:
    """The frame that tells the peer why, before the connection is closed."""
    return Frame(Kind.REFUSAL, msgspec.msgpack.encode(Refusal(error.code, str(error))))


def _no_common(ours: tuple[int, int], theirs: int, software: str) -> str:
    return (
        f"this side speaks message versions {ours[0]} to {ours[1]}, the other one (release"
        f" {software}) {theirs}; upgrade one release at a time"
    )


def _refused(told: Refusal) -> MoonpoolError:
    # A stranger wrote this: of our tree it may raise only what a server can say at the door.
    error = error_from_code(told.code, told.text)
    if isinstance(error, Refused | ProtocolMismatch | BadFrame):
        return error
    return Refused(f"the server refused the connection: {told.text}")


def _checked(nonce: bytes) -> bytes:
    if len(nonce) != NONCE_BYTES:
        raise BadFrame(f"handshake: a nonce of {len(nonce)} bytes, it takes {NONCE_BYTES}")
    return nonce


def _decode(frame: Frame, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(frame.payload, type=kind)
    except msgspec.MsgspecError as error:
        raise BadFrame(f"handshake: a {frame.kind.name} frame is malformed: {error}") from None
