"""Segment files and sockets that dead processes left behind, and their removal.

Only what is surely ours and surely dead is removed: a well-formed segment whose owner lock is free
(the core takes that lock while it unlinks), or a socket that refuses connections.
"""

import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from moonpool.cli.probes.finding import Finding, State
from moonpool.core.units import format_bytes

_CONNECT_TIMEOUT_S = 1.0


class SegmentFiles(Protocol):
    """What the core knows of segment files it has not opened; `moonpool._core` is one."""

    def segment_info(self, path: str) -> dict[str, object]: ...

    def remove_dead_segment(self, path: str) -> bool: ...


class Left(NamedTuple):
    """Something in the folder that belongs to no living process."""

    path: Path
    is_socket: bool
    detail: str


def native_segment_files() -> SegmentFiles:
    from moonpool import _core

    return _core


def probe_segments(folder: Path, files: SegmentFiles, clean: bool) -> list[Finding]:
    """One finding per entry that needs one, and always one for the folder; removes with `clean`."""
    what = "segment folder"
    if not folder.is_dir():
        return [Finding(what, State.OK, f"{folder} does not exist yet")]
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        advice = f"others could open your segments: chmod 700 {folder}"
        return [Finding(what, State.FAILED, f"{folder} has mode {mode:o}", advice)]
    findings = list(_entries(folder, files, clean))
    return [Finding(what, State.OK, f"{folder}, mode 700"), *findings]


def _entries(folder: Path, files: SegmentFiles, clean: bool) -> Iterator[Finding]:
    for path in sorted(folder.iterdir()):
        mode = path.lstat().st_mode
        if stat.S_ISSOCK(mode):
            if _refuses(path):
                yield _report(Left(path, True, "socket without a listener"), files, clean)
        elif stat.S_ISREG(mode):
            yield from _file(path, files, clean)


def _file(path: Path, files: SegmentFiles, clean: bool) -> Iterator[Finding]:
    try:
        info = files.segment_info(str(path))
    except Exception as error:  # the core's own error classes; whatever it is, we do not touch it
        info = {"problem": str(error)}
    if info["problem"]:
        advice = f"not touched; if you know what it is: rm {path}"
        yield Finding("file", State.LIMITED, f"{path}: {info['problem']}", advice)
    elif info["owner_alive"]:
        yield Finding(
            "segment", State.OK, f"{path}: owner {info['owner_pid']} lives, {_size(info)}"
        )
    else:
        clients = f", {info['clients_alive']} clients still map it" if info["clients_alive"] else ""
        yield _report(Left(path, False, f"owner is dead, {_size(info)}{clients}"), files, clean)


def _report(left: Left, files: SegmentFiles, clean: bool) -> Finding:
    what = "socket" if left.is_socket else "segment"
    detail = f"{left.path}: {left.detail}"
    if not clean:
        keep = "" if left.is_socket else "restart its node to re-adopt the objects, or "
        return Finding(what, State.LIMITED, detail, f"{keep}remove it: moonpool doctor --clean")
    if left.is_socket:
        left.path.unlink(missing_ok=True)
    elif not files.remove_dead_segment(str(left.path)):
        return Finding(what, State.OK, f"{left.path}: a node adopted it meanwhile")
    return Finding(what, State.OK, f"{detail}; removed")


def _refuses(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_CONNECT_TIMEOUT_S)
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _size(info: dict[str, object]) -> str:
    size = info["file_bytes"]
    assert isinstance(size, int)
    return format_bytes(size)
