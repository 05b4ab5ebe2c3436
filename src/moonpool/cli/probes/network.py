"""Whether the master's port can be had."""

import errno
import socket

from moonpool.cli.probes.finding import Finding, State


def probe_port(host: str, port: int) -> Finding:
    """Binds `host:port` for a moment; nothing is sent to anybody."""
    what = "master port"
    where = f"{host}:{port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            advice = "fine if that is your master (moonpool stat); else choose another with --port"
            return Finding(what, State.LIMITED, f"{where} is taken", advice)
        reason = error.strerror or str(error)
        return Finding(
            what, State.FAILED, f"{where} cannot be bound: {reason}", "choose another --host"
        )
    return Finding(what, State.OK, f"{where} is free")
