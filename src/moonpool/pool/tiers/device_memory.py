"""Memory that a device tier lends, and which pieces of it are free. No object is known here."""

from __future__ import annotations

import importlib
from bisect import bisect_left
from typing import Any, NamedTuple, Protocol

import numpy as np

from moonpool.core.errors import BadConfig, MissingExtra
from moonpool.core.units import format_bytes
from moonpool.pool.tiers.base import Buffer
from moonpool.transfer.tensors import host_tensor


class DeviceMemory(Protocol):
    """Bytes on a device. Both calls return when the bytes are there; any threads may call."""

    @property
    def nbytes(self) -> int: ...

    def write(self, offset: int, data: memoryview) -> None: ...

    def read(self, offset: int, length: int) -> Buffer: ...


class TorchMemory:
    """A tensor of bytes; device "cuda" or "cuda:1", or "cpu" to try it without one."""

    def __init__(self, device: str, nbytes: int) -> None:
        """Raises MissingExtra without torch, BadConfig without such a device or its memory."""
        try:
            # By name, and only for who asks for a device: nothing in this room needs torch.
            torch: Any = importlib.import_module("torch")
        except ImportError:
            raise MissingExtra(
                "node.vram lends memory of a device and needs torch: pip install 'moonpool[engine]'"
            ) from None
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise BadConfig(
                f"node.vram: no CUDA device here for '{device}' (torch sees none); leave node.vram "
                "out, or name another one as node.vram_device"
            )
        try:
            self._bytes: Any = torch.empty(nbytes, dtype=torch.uint8, device=device)
        except RuntimeError as error:
            raise BadConfig(
                f"node.vram: '{device}' gives no {format_bytes(nbytes)}: {error}"
            ) from None
        self._torch = torch
        self.nbytes = nbytes

    def write(self, offset: int, data: memoryview) -> None:
        host = host_tensor(self._torch, np.frombuffer(data, np.uint8))
        self._bytes[offset : offset + data.nbytes].copy_(host)

    def read(self, offset: int, length: int) -> Buffer:
        there = self._bytes[offset : offset + length]
        return there.to("cpu", copy=True).numpy()  # waits for the device


class Piece(NamedTuple):
    offset: int
    length: int


class FreePieces:
    """What of [0, nbytes) nobody has: pieces in order, neighbours joined, taken from the front."""

    def __init__(self, nbytes: int) -> None:
        self.free_bytes = nbytes
        self._free = [Piece(0, nbytes)] if nbytes else []

    def take(self, nbytes: int) -> list[Piece] | None:
        """So many bytes, in several pieces where it must be. None: there are not as many."""
        if nbytes > self.free_bytes:
            return None
        whole = next((i for i, one in enumerate(self._free) if one.length >= nbytes), 0)
        taken: list[Piece] = []
        left, self.free_bytes = nbytes, self.free_bytes - nbytes
        while left:
            at = whole if whole < len(self._free) else 0
            one = self._free[at]
            length = min(left, one.length)
            taken.append(Piece(one.offset, length))
            left -= length
            if length == one.length:
                del self._free[at]
            else:
                self._free[at] = Piece(one.offset + length, one.length - length)
        return taken

    def give_back(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            self.free_bytes += piece.length
            at = bisect_left(self._free, piece)
            if at < len(self._free) and piece.offset + piece.length == self._free[at].offset:
                piece = Piece(piece.offset, piece.length + self._free.pop(at).length)
            before = self._free[at - 1] if at else None
            if before is not None and before.offset + before.length == piece.offset:
                self._free[at - 1] = Piece(before.offset, before.length + piece.length)
            else:
                self._free.insert(at, piece)
