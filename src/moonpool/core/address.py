"""Addresses as people write them: "host:port", "[::1]:7400", "unix:/path/of/socket",
and "etcd://host:port,host:port/prefix" for what is found through etcd."""

import ipaddress
import os
from typing import NamedTuple
from urllib.parse import urlsplit

from moonpool.core.errors import BadConfig, TransferError

ETCD = ("etcd://", "etcds://")
_SCHEMES = {"etcd": "http", "http": "http", "etcds": "https", "https": "https"}
UNIX_PATH_BYTES_MAX = 107  # sun_path of Linux, less its closing zero


class Address(NamedTuple):
    """Either a host and a port, or the path of a UNIX socket (then host is '' and port 0)."""

    host: str
    port: int
    unix_path: str = ""

    def __str__(self) -> str:
        if self.unix_path:
            return f"unix:{self.unix_path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """The parts of `text`. Raises BadConfig; resolves no name."""
    if not isinstance(text, str):
        raise BadConfig(f"an address is text as 'host:port', not {text!r}")
    if text.startswith("unix:"):
        return _unix_address(text)
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise BadConfig(f"address {text!r}: write an IPv6 host in brackets, as '[::1]:7400'")
    if not colon or not host or not (port.isascii() and port.isdigit()):
        raise BadConfig(f"address {text!r} is not 'host:port' nor 'unix:/path'")
    if not 1 <= int(port) <= 65535:
        raise BadConfig(f"address {text!r}: the port must be within 1..65535")
    return Address(host, int(port))


class EtcdAddress(NamedTuple):
    """Members, whether they speak TLS, and the prefix of the keys, without slashes at its ends."""

    members: tuple[tuple[str, int], ...]
    tls: bool
    prefix: str


def parse_etcd(text: str) -> EtcdAddress:
    """'etcd://HOST:PORT[,HOST:PORT...]/PREFIX' (etcds:// with TLS; http and https mean the same).

    Raises BadConfig.
    """
    parts = urlsplit(text)
    members = []
    for member in parts.netloc.split(","):
        try:
            one = urlsplit(f"//{member}")
            members.append((one.hostname or "", one.port or 2379))
        except ValueError:
            members.append(("", 0))
    if parts.scheme not in _SCHEMES or not all(host for host, _ in members) or "@" in parts.netloc:
        raise BadConfig(f"{text!r}: write 'etcd://host:2379,host:2379/prefix'")
    return EtcdAddress(tuple(members), _SCHEMES[parts.scheme] == "https", parts.path.strip("/"))


def is_etcd(text: str) -> bool:
    """True for an address that says where to ask for the address."""
    return text.startswith(ETCD)


def check_master(text: str) -> None:
    """A master's address, or where its leader is found. Raises BadConfig."""
    if not is_etcd(text):
        parse_address(text)
    elif not parse_etcd(text).prefix:
        raise BadConfig(f"{text!r} has no prefix for the pool's keys: 'etcd://host:2379/pool'")


def cannot_listen(host: str, port: int, error: OSError) -> TransferError:
    """The one line for a port that cannot be had; the caller raises it."""
    why = os.strerror(error.errno) if error.errno else str(error)
    return TransferError(
        f"cannot listen on {host}:{port}: {why}; end what listens there, or give another --port"
        " (0 takes any free one)"
    )


def _unix_address(text: str) -> Address:
    path = text.removeprefix("unix:")
    if not path.startswith("/"):
        raise BadConfig(f"address {text!r}: the socket's path must be absolute")
    if len(path.encode()) > UNIX_PATH_BYTES_MAX:
        raise BadConfig(f"address {text!r}: the path is over {UNIX_PATH_BYTES_MAX} bytes")
    return Address("", 0, path)


def is_loopback(host: str) -> bool:
    """True if only this machine can reach `host`; a name other than localhost counts as public."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
