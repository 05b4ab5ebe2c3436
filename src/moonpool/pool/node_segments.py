"""Segment files of a node: adopted from its last life, or formatted anew."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from moonpool.core.errors import (
    BadConfig,
    SegmentDamaged,
    SegmentError,
    SegmentLocked,
    SegmentSpace,
)
from moonpool.core.sections import NodeConfig
from moonpool.core.units import format_bytes
from moonpool.pool import messages as m
from moonpool.transfer.room import require_room

if TYPE_CHECKING:
    from moonpool._core import SegmentAgent

SLOT_DATA_BYTES = 8192  # one slot for so many bytes of data, unless `slots` says otherwise
SHARED_MEMORY = "/dev/shm"
SOCKET_SUFFIX, SOCKET_PATH_MAX = ".sock", 107
SLOTS_MIN = 1024
HEADROOM_MIN = 16 << 20
NAMES_MAX = 256


def headroom_bytes(config: NodeConfig) -> int:
    """Memory on top of the capacity: what is in flight, retired or pinned lives there."""
    if config.headroom != "auto":
        return config.headroom
    return max(HEADROOM_MIN, config.memory // 8)


def slot_count(config: NodeConfig) -> int:
    return config.slots or min(m.SLOTS_MAX, max(SLOTS_MIN, config.memory // SLOT_DATA_BYTES))


def open_segment(config: NodeConfig) -> tuple[SegmentAgent, str]:
    """Adopt the segment file of this node's last life, or format a new one; with its name.

    Raises SegmentLocked (a living node owns it), SegmentError, BadConfig (the folder is no good, or
    the file has another capacity than asked for).
    """
    directory = config.directory
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadConfig(f"node.dir = {directory} cannot be made: {error.strerror}") from None
    if config.name:
        return open_named(config, config.name, config.memory), config.name
    base = socket.gethostname()
    for number in range(NAMES_MAX):
        name = f"{base}-{number}"
        try:
            return open_named(config, name, config.memory), name
        except SegmentLocked:
            continue
    raise SegmentError(f"{NAMES_MAX} nodes already run in {directory}; give this one a --name")


@contextlib.contextmanager
def segment_errors(where: object) -> Iterator[None]:
    """Native errors as those of our tree."""
    from moonpool import _core

    try:
        yield
    except _core.SegmentLocked as error:
        raise SegmentLocked(_naming(where, error)) from None
    except _core.SegmentFormat as error:
        raise SegmentDamaged(f"{_naming(where, error)}; remove it to start empty") from None
    except _core.SegmentSpace as error:
        raise SegmentSpace(f"{_naming(where, error)}; ask for less --memory or free some") from None
    except _core.SegmentError as error:
        raise SegmentError(_naming(where, error)) from None
    except (OSError, ValueError) as error:
        raise BadConfig(_naming(where, error)) from None


def _naming(where: object, error: Exception) -> str:
    """The error's text with the segment's name, which most have already."""
    text = str(error)
    return text if str(where) in text else f"{where}: {text}"


def require_same_tenant(path: Path, was: str, asked: str) -> None:
    """What is left there may be read by whoever it serves now. Raises BadConfig."""
    if was != asked:
        served = f"tenant {was!r} alone" if was else "all tenants"
        raise BadConfig(
            f"{path} served {served}, asked for node.tenant = {asked!r}; ask for the same, or "
            "remove it to start empty"
        )


def open_named(config: NodeConfig, name: str, capacity: int | None) -> SegmentAgent:
    """The segment `name`; of `capacity`, unless its file says how large it is (None). Raises
    SegmentError, BadConfig."""
    from moonpool import _core

    path = config.directory / f"{name}.seg"
    socket_path = config.directory / f"{name}{SOCKET_SUFFIX}"  # names may have dots
    if len(os.fsencode(socket_path)) > SOCKET_PATH_MAX:
        raise BadConfig(f"{socket_path} is too long for a socket; shorten --dir")
    with segment_errors(path):
        if not path.exists():
            if path.is_relative_to(SHARED_MEMORY):
                require_room(config.memory + headroom_bytes(config))
            return _core.SegmentAgent.create(
                *(str(path), config.memory, headroom_bytes(config), slot_count(config)),
                *(config.rows, config.tenant.encode()),
            )
        agent = _core.SegmentAgent.adopt(str(path))
    try:
        require_same_tenant(path, agent.trust_domain.decode(), config.tenant)
    except BadConfig:
        agent.close()
        raise
    if capacity is not None and agent.capacity_bytes != capacity:
        held = agent.capacity_bytes
        agent.close()
        raise BadConfig(
            f"{path} holds a segment of {format_bytes(held)}, asked for "
            f"{format_bytes(capacity)}; ask for the same, or remove the file to start empty"
        )
    return agent
