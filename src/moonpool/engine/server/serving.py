"""An application on a socket, by uvicorn, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from moonpool.core.errors import BadInput, missing_extra

if TYPE_CHECKING:
    import uvicorn

    from moonpool.engine.server.app import Application

BACKLOG: Final = 512
FAREWELL_S: Final = 5
"""So long answers under way may go on after the signal; then they are aborted."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket: from here on connections wait for `serve`. Raises BadInput."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise BadInput(
            f"cannot listen on {host}:{port}: {error.strerror}; port 0 takes any free one"
        ) from None


def server_of(application: Application) -> uvicorn.Server:
    """The server of `application`, not running yet."""
    try:
        import uvicorn
    except ImportError:
        raise missing_extra("the engine's server", "engine") from None
    return uvicorn.Server(
        uvicorn.Config(
            application,
            lifespan="off",
            ws="none",  # by default it depends on what else is installed
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=FAREWELL_S,
        )
    )


def serve(application: Application, listening: socket.socket) -> None:
    """Serve until a signal; returns when the last answer is over or cut off."""
    server_of(application).run(sockets=[listening])
