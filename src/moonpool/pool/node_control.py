"""What a running node can be told on its own host: a UNIX socket in its folder, a line of JSON each
way. Only processes of its user (or root) are heard, and the folder is theirs alone.

    {"do": "mounts"}                        {"segments": [...]}
    {"do": "mount", "size": 1073741824}     {"segment": {...}}
    {"do": "unmount", "segment": 2}         {"segment": {...}}; "stay": true takes it back
An error is {"error": code, "message": text}.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from moonpool.core.errors import BadInput, MoonpoolError, Unreachable, error_from_code

if TYPE_CHECKING:
    from moonpool.pool.node_mounts import Mounts

log = logging.getLogger("moonpool.node")

CONTROL_SUFFIX = ".control"
LINE_BYTES_MAX = 65_536
LINE_S = 10.0  # a caller that says nothing for so long is cut off
CALLERS_MAX = 16


class _Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    do: str
    size: int = 0
    segment: int = 0
    stay: bool = False


class NodeControl:
    """Serves orders between `start` and `stop`."""

    def __init__(self, mounts: Mounts, path: Path) -> None:
        self._mounts = mounts
        self._path = path
        self._server: asyncio.Server | None = None
        self._callers = 0

    async def start(self) -> None:
        """A node without a place for this socket serves all the same."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()  # ours: the node holds the lock of its segment
        try:
            self._server = await asyncio.start_unix_server(
                self._talk, str(self._path), limit=LINE_BYTES_MAX
            )
            self._path.chmod(0o600)
        except OSError as error:
            log.warning("no control socket at %s: %s", self._path, error)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._callers += 1
        try:
            if self._callers > CALLERS_MAX or not _trusted(writer):
                return
            line = await asyncio.wait_for(reader.readline(), LINE_S)
            answer = await self._answer(line)
            writer.write(msgspec.json.encode(answer) + b"\n")
            await asyncio.wait_for(writer.drain(), LINE_S)
        except (OSError, ValueError, TimeoutError):
            pass  # who went away, or sent no line, is answered by the end of the connection
        finally:
            self._callers -= 1
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            return await self._obey(msgspec.json.decode(line, type=_Order))
        except msgspec.MsgspecError as error:
            return {"error": BadInput.code, "message": f"no order: {error}"}
        except MoonpoolError as error:
            return {"error": error.code, "message": str(error)}

    async def _obey(self, order: _Order) -> dict[str, Any]:
        """Raises MoonpoolError."""
        match order.do:
            case "mounts":
                return {"segments": self._mounts.records()}
            case "mount":
                return {"segment": (await self._mounts.mount(order.size)).record()}
            case "unmount" if order.stay:
                return {"segment": (await self._mounts.stay(order.segment)).record()}
            case "unmount":
                return {"segment": self._mounts.unmount(order.segment).record()}
        raise BadInput(f"a node does mounts, mount and unmount, not {order.do!r}")


def _trusted(writer: asyncio.StreamWriter) -> bool:
    peer: socket.socket = writer.get_extra_info("socket")
    packed = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", packed)
    return uid in (0, os.getuid())


def control_of(directory: Path, name: str) -> Path:
    """The socket of the node `name`, or of the only one there. Raises BadInput, Unreachable."""
    if name:
        return directory / f"{name}{CONTROL_SUFFIX}"
    found = sorted(directory.glob(f"*{CONTROL_SUFFIX}")) if directory.is_dir() else []
    if len(found) > 1:
        names = ", ".join(path.name.removesuffix(CONTROL_SUFFIX) for path in found)
        raise BadInput(f"which node? give --name: {names}")
    if not found:
        raise Unreachable(f"no node runs in {directory}")
    return found[0]


def tell_node(path: Path, timeout_s: float, **order: Any) -> dict[str, Any]:
    """One order and its answer. Raises what the node says, and Unreachable."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout_s)
            sock.connect(str(path))
            sock.sendall(msgspec.json.encode(order) + b"\n")
            with sock.makefile("rb") as lines:
                line = lines.readline(LINE_BYTES_MAX)
    except OSError as error:
        raise Unreachable(f"the node at {path}: {error}") from None
    if not line.endswith(b"\n"):
        raise Unreachable(f"the node at {path} ended the connection without an answer")
    answer: dict[str, Any] = msgspec.json.decode(line)
    if "error" in answer:
        raise error_from_code(answer["error"], answer["message"])
    return answer
