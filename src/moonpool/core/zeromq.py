"""What publishers and followers of KV events over ZeroMQ have in common."""

from __future__ import annotations

import os
from typing import Any

from moonpool.core.address import Address
from moonpool.core.errors import BadConfig, missing_extra


def import_zmq(what: str, extra: str) -> Any:
    """The package with its asyncio part. Raises MissingExtra: `what` cannot be had without it."""
    try:
        import zmq
        import zmq.asyncio
    except ImportError:
        raise missing_extra(what, extra) from None
    return zmq


def bound_socket(
    zmq: Any, context: Any, kind: int, queue: int, host: str, port: int
) -> tuple[Any, str]:
    """A socket that keeps `queue` messages for each peer, and its endpoint 'tcp://host:port'.

    Port 0 takes any free one. Raises BadConfig when it cannot be had."""
    address = Address(host, port)
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, queue)
    socket.setsockopt(zmq.IPV6, ":" in host)
    try:
        socket.bind(f"tcp://{address}")
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise BadConfig(
            f"events: cannot listen on {address}: {os.strerror(error.errno)}; "
            "port 0 takes any free one"
        ) from None
    bound: bytes = socket.getsockopt(zmq.LAST_ENDPOINT)
    number = int(bound.rstrip(bytes(1)).rpartition(b":")[2])
    return socket, f"tcp://{address._replace(port=number)}"
