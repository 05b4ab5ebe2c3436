"""What the kernel would do with a packet: which interface it leaves by, and from which address.

One question to the routing table over netlink, as `ip route get` asks it; nothing is sent anywhere.
"""

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import NamedTuple

from moonpool.core.address import is_loopback

_RTM_GETROUTE, _RTM_NEWROUTE, _NLM_F_REQUEST = 26, 24, 1
_RTA_DST, _RTA_OIF, _RTA_PREFSRC = 1, 4, 7
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ROUTE = struct.Struct("=BBBBBBBBI")  # family, length of dst and src, tos, table, ...
_ATTRIBUTE = struct.Struct("=HH")
_ANSWER_S = 1.0
_SIOCGIFADDR = 0x8915


class Route(NamedTuple):
    """`interface` is '' when there is no way there, or none that can be asked about."""

    interface: str
    source: str


NO_ROUTE = Route("", "")


def route_to(host: str) -> Route:
    """How `host`, an address or a name, is reached from here."""
    try:
        family, _, _, _, where = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        address = ipaddress.ip_address(str(where[0]).partition("%")[0])
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asked:
            asked.settimeout(_ANSWER_S)
            asked.send(_question(family, address.packed))
            return _answer(asked.recv(65_536), family)
    except (OSError, ValueError, struct.error):
        # No such name, no netlink in this sandbox, or an answer of another shape: not known.
        return NO_ROUTE


def own_addresses() -> dict[str, str]:
    """Addresses of this machine, each with its interface. Of IPv4 the first of each interface."""
    found = dict[str, str]()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(asked, _SIOCGIFADDR, request)
                found[socket.inet_ntoa(answer[20:24])] = name
            except OSError:
                # An interface without an IPv4 address.
                continue
    for line in _if_inet6().splitlines():
        packed, *_, name = line.split()
        found[socket.inet_ntop(socket.AF_INET6, bytes.fromhex(packed))] = name
    return found


def interface_of(host: str, addresses: dict[str, str]) -> str:
    """The interface of one of our own addresses, '' if it is none; all of loopback is one."""
    if host not in addresses and is_loopback(host):
        return next((name for one, name in addresses.items() if is_loopback(one)), "")
    return addresses.get(host, "")


def _if_inet6() -> str:
    try:
        return Path("/proc/net/if_inet6").read_text(encoding="ascii")
    except OSError:
        # A kernel without IPv6.
        return ""


def _question(family: int, packed: bytes) -> bytes:
    route = _ROUTE.pack(family, 8 * len(packed), 0, 0, 0, 0, 0, 0, 0)
    attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(packed), _RTA_DST) + packed
    length = _HEADER.size + len(route) + len(attribute)
    return _HEADER.pack(length, _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0) + route + attribute


def _answer(message: bytes, family: int) -> Route:
    length, kind, *_ = _HEADER.unpack_from(message)
    if kind != _RTM_NEWROUTE:
        return NO_ROUTE
    interface, source = "", ""
    at = _HEADER.size + _ROUTE.size
    while at + _ATTRIBUTE.size <= min(length, len(message)):
        size, what = _ATTRIBUTE.unpack_from(message, at)
        value = message[at + _ATTRIBUTE.size : at + size]
        if what == _RTA_OIF:
            interface = socket.if_indextoname(struct.unpack("=I", value)[0])
        elif what == _RTA_PREFSRC:
            source = socket.inet_ntop(family, value)
        at += max(_ATTRIBUTE.size, (size + 3) & ~3)
    return Route(interface, source)
