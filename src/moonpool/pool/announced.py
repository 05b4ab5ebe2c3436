"""Whether the address that a node announces is one that its peers could reach."""

from __future__ import annotations

import ipaddress
import logging
from contextlib import suppress

from moonpool.core.address import is_loopback, parse_address
from moonpool.core.errors import BadConfig
from moonpool.pool import messages as m

log = logging.getLogger("moonpool.master")

EVERYWHERE = ("0.0.0.0", "::")


def out_of_reach(announced: str, seen_from: str) -> str:
    """Why nobody else reaches `announced` ("host:port", empty: it has none), with what to do; empty
    when somebody may. `seen_from` is the address that its connection comes from, empty for a UNIX
    socket: whoever comes from this host shares its loopback."""
    if not announced or not seen_from or is_loopback(seen_from):
        return ""
    try:
        host = parse_address(announced).host
    except BadConfig as error:
        return f"the node announces {announced!r}: {error}"
    if is_loopback(host):
        what = "which only its own host reaches"
    elif host in EVERYWHERE:
        what = "which is no address of one host"
    else:
        return ""
    with suppress(ValueError):
        mapped = getattr(ipaddress.ip_address(seen_from), "ipv4_mapped", None)
        seen_from = str(mapped or seen_from)
    return (
        f"the node announces {announced}, {what}; it was seen at {seen_from}: give it an address "
        f"that others reach, as in `moonpool node --host {seen_from}`"
    )


def join_refusal(join: m.JoinSegment, seen_from: str) -> m.Failure | None:
    """What a node is told that clients of other hosts would only time out on."""
    why = out_of_reach(join.endpoint.tcp, seen_from)
    if not why:
        return None
    log.warning("node %s is refused: %s", join.endpoint.node, why)
    return m.Failure("bad_config", why)
