"""Request traces: who asked for which prompt blocks, and when.

A trace is JSON lines (plain, .gz or .xz) of `Request`. An id in `hash_ids` names a block together
with everything before it, so equal ids mean equal prefixes and an id has one parent for ever.
What does not fit is refused with file and line: a wrong block size would pass unnoticed and give
hit ratios that mean nothing.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Annotated, Final, Literal, NamedTuple

import msgspec

from moonpool.core.errors import BadTrace, did_you_mean

BLOCK_TOKENS_DEFAULT: Final = 512
LINE_BYTES_MAX: Final = 64 << 20
PACKAGED: Final = {
    "conversation": "conversation_trace.jsonl.gz",
    "synthetic": "synthetic_trace.jsonl.gz",
}

Rounding = Literal["ceil", "floor"]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Request(msgspec.Struct, frozen=True):
    """One request: `timestamp` in ms since the start, lengths in tokens.

    Fields that other tools add to a line are ignored.
    """

    timestamp: _Count
    input_length: _Count
    output_length: _Count
    hash_ids: list[_Count]


class TraceSummary(NamedTuple):
    """What a trace holds, before anything is replayed."""

    requests: int
    input_tokens: int
    output_tokens: int
    blocks: int
    different_blocks: int
    duration_ms: int


@dataclass(frozen=True)
class Trace:
    """A whole trace in memory, in file order (equal timestamps keep their order)."""

    name: str
    requests: tuple[Request, ...]
    block_tokens: int = BLOCK_TOKENS_DEFAULT
    rounding: Rounding = "ceil"

    @cached_property
    def summary(self) -> TraceSummary:
        requests = self.requests
        return TraceSummary(
            requests=len(requests),
            input_tokens=sum(r.input_length for r in requests),
            output_tokens=sum(r.output_length for r in requests),
            blocks=sum(len(r.hash_ids) for r in requests),
            different_blocks=len({block for r in requests for block in r.hash_ids}),
            duration_ms=requests[-1].timestamp - requests[0].timestamp if requests else 0,
        )

    def head(self, limit: int) -> Trace:
        """The first `limit` requests as a trace of its own."""
        return Trace(self.name, self.requests[:limit], self.block_tokens, self.rounding)


def locate(trace: str | Path) -> Path:
    """The file of a packaged trace's name, or the path itself. Raises BadTrace when absent."""
    name = str(trace)
    if name in PACKAGED:
        return Path(__file__).with_name("data") / PACKAGED[name]
    path = Path(trace)
    if not path.is_file():
        raise BadTrace(
            f"{name}: no such file, and no packaged trace of this name"
            f" ({', '.join(PACKAGED)}).{did_you_mean(name, PACKAGED)}"
        )
    return path


def read_requests(
    trace: str | Path,
    *,
    block_tokens: int = BLOCK_TOKENS_DEFAULT,
    rounding: Rounding = "ceil",
) -> Iterator[Request]:
    """Stream the requests of a trace (packaged name or path), each checked.

    Args:
        trace: name of a packaged trace, or a .jsonl, .jsonl.gz or .jsonl.xz file.
        block_tokens: tokens of one block of the trace.
        rounding: "ceil" when a partial last block has an id, "floor" when it has none.

    Raises:
        BadTrace: with file and line, when a line does not fit.
    """
    if block_tokens < 1:
        raise BadTrace(f"block_tokens must be at least 1, not {block_tokens}")
    path = locate(trace)
    check = _Check(block_tokens, rounding)
    decode = msgspec.json.Decoder(Request).decode
    for number, line in enumerate(_lines(path), start=1):
        try:
            request = decode(line)
            check(request)
        except (msgspec.DecodeError, ValueError) as error:
            raise BadTrace(f"{path}:{number}: {error}") from None
        yield request


def load(
    trace: str | Path,
    *,
    block_tokens: int = BLOCK_TOKENS_DEFAULT,
    rounding: Rounding = "ceil",
) -> Trace:
    """Read a whole trace; arguments and errors of `read_requests`."""
    requests = tuple(read_requests(trace, block_tokens=block_tokens, rounding=rounding))
    return Trace(str(trace), requests, block_tokens, rounding)


class _Check:
    """What holds between fields and between lines; raises ValueError."""

    def __init__(self, block_tokens: int, rounding: Rounding) -> None:
        self._block_tokens = block_tokens
        self._rounding = rounding
        self._last_timestamp = 0
        self._parents: dict[int, int | None] = {}

    def __call__(self, request: Request) -> None:
        self._count(request)
        if request.timestamp < self._last_timestamp:
            raise ValueError(
                f"timestamp {request.timestamp} after {self._last_timestamp}: a trace is sorted"
            )
        self._last_timestamp = request.timestamp
        self._chain(request.hash_ids)

    def _count(self, request: Request) -> None:
        extra = self._block_tokens - 1 if self._rounding == "ceil" else 0
        expected = (request.input_length + extra) // self._block_tokens
        if len(request.hash_ids) != expected:
            raise ValueError(
                f"{len(request.hash_ids)} hash_ids for input_length {request.input_length}, but"
                f" {self._rounding}({request.input_length} / {self._block_tokens}) = {expected}:"
                " is this the trace's block size and rounding?"
            )

    def _chain(self, ids: list[int]) -> None:
        parent: int | None = None
        for block in ids:
            if self._parents.setdefault(block, parent) != parent:
                raise ValueError(
                    f"block {block} follows {_spell(parent)} here but"
                    f" {_spell(self._parents[block])} before: an id names a block with its prefix"
                )
            parent = block


def _spell(parent: int | None) -> str:
    return "nothing" if parent is None else f"block {parent}"


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with _open(path) as file:
            yield from _bounded(file, path)
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise BadTrace(f"{path}: damaged or not of its suffix: {error}") from error


def _bounded(file: IO[bytes] | gzip.GzipFile, path: Path) -> Iterable[bytes]:
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise BadTrace(f"{path}:{number}: a line of more than {LINE_BYTES_MAX} bytes")
        yield line


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    return path.open("rb")
