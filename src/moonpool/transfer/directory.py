"""Engines by name: where each listens, in which life it is, what it offers.

Peers find each other without one, by address. With one, `engine.connect("decode-0")` asks etcd, at
first and whenever the peer was lost, so that an engine that came back elsewhere is found again. An
entry is a hint: the hello says whether the process that answers is the one that it names.
"""

from typing import Any

import msgspec

from moonpool.core.address import parse_address
from moonpool.core.errors import BadConfig, BadFrame, BadInput
from moonpool.core.etcd import EtcdAddress, EtcdClient, parse_etcd

NAME_BYTES_MAX = 128
_TIMEOUT_S = 5.0


class EngineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """`epoch` is new with each life; `addresses` are "host:port", one at least, the best first;
    `segments` are those that peers see, with their bytes."""

    name: str
    epoch: int
    addresses: list[str]
    segments: dict[str, int] = {}


_decoder = msgspec.json.Decoder(EngineEntry)


def encode_entry(entry: EngineEntry) -> bytes:
    return msgspec.json.encode(entry)


def decode_entry(raw: bytes) -> EngineEntry:
    """Raises BadFrame for what another program wrote there."""
    try:
        entry = _decoder.decode(raw)
        for address in entry.addresses:
            parse_address(address)
    except (msgspec.MsgspecError, BadConfig) as error:
        raise BadFrame(f"the directory holds something else than an engine: {error}") from None
    if not entry.addresses:
        raise BadFrame(f"the directory has no address of engine '{entry.name}'")
    return entry


def check_engine_name(name: Any) -> str:
    """Raises BadInput for a name that could not be told from an address, or not be a key."""
    good = isinstance(name, str) and 0 < len(name.encode()) <= NAME_BYTES_MAX
    if not good or not name.isprintable() or any(one in name for one in ":/ "):
        raise BadInput(
            f"{name!r} names no engine: write 1..{NAME_BYTES_MAX} bytes without ':', '/' and "
            f"spaces, or an address as 'host:port'"
        )
    return str(name)


class EtcdDirectory:
    """`engine.directory`, when `etcd` is set. Every call opens its own connection and takes
    `timeout` seconds at most. Raises Unreachable, DeadlineExceeded, BadFrame."""

    def __init__(self, where: str) -> None:
        self._where: EtcdAddress = parse_etcd(where)
        self._prefix = f"{self._where.prefix}/engines/".lstrip("/")

    def find(self, name: str, timeout: float = _TIMEOUT_S) -> EngineEntry | None:
        """Who is announced under that name."""
        with self.client(timeout) as client:
            pairs = client.range(self.key(name))
        return decode_entry(pairs[0].value) if pairs else None

    def entries(self, timeout: float = _TIMEOUT_S) -> list[EngineEntry]:
        """All engines, by name."""
        with self.client(timeout) as client:
            pairs = client.range(self._prefix, prefix=True)
        return [decode_entry(pair.value) for pair in pairs]

    def offering(self, segment: str, timeout: float = _TIMEOUT_S) -> list[str]:
        """Names of the engines that offer a segment of that name."""
        return [one.name for one in self.entries(timeout) if segment in one.segments]

    def key(self, name: str) -> str:
        """For announcers."""
        return self._prefix + name

    def client(self, timeout: float) -> EtcdClient:
        """For announcers."""
        return EtcdClient(self._where, timeout_s=timeout)
