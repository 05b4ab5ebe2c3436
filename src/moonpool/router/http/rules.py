"""What of a message travels on, and what a message may look like: pure rules on bytes.

Both sides of the relay write their own framing: what one side sent as length, chunks or trailers
never reaches the other (RFC 9112, section 6), so no two parsers can disagree about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final, NamedTuple

from moonpool.core.errors import BadRequest

Header = tuple[bytes, bytes]
"""Name in lower case, and value."""

HOP_BY_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer"
    b" transfer-encoding upgrade http2-settings expect".split()
)
_FRAMING: Final = frozenset((b"content-length", b"transfer-encoding"))
_METHODS: Final = frozenset(b"GET HEAD POST PUT PATCH DELETE OPTIONS".split())
_NO_BODY: Final = frozenset((204, 304))

REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_DIGITS: Final = frozenset(b"0123456789")


class Limits(NamedTuple):
    """What one request may take."""

    head_bytes_max: int = 32 << 10
    headers_max: int = 100
    body_bytes_max: int = 64 << 20


def passed_on(headers: Iterable[Header]) -> list[Header]:
    """Headers without those of one hop only, named ones of `connection` and framing included."""
    kept = [pair for pair in headers if pair[0] not in HOP_BY_HOP and pair[0] not in _FRAMING]
    named = [value for name, value in headers if name == b"connection"]
    if not named:
        return kept
    also = {word.strip().lower() for value in named for word in value.split(b",")}
    return [pair for pair in kept if pair[0] not in also]


def check_request_head(
    method: bytes, target: bytes, version: str, headers: list[Header]
) -> int | None:
    """The body's length, None when it comes in chunks. Raises BadRequest.

    The parser refuses most of what is ambiguous; this refuses what it lets through.
    """
    if version not in ("1.0", "1.1"):
        raise BadRequest(f"HTTP {version} is not spoken here; use 1.1", 505)
    if method not in _METHODS:
        raise BadRequest(f"method {method.decode('latin-1')} is not relayed", 405)
    if not target.startswith(b"/") and not (method == b"OPTIONS" and target == b"*"):
        raise BadRequest("the target must be a path; this is no forward proxy", 400)
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise BadRequest(f"{hosts} Host headers; one is needed", 400)
    coding = value_of(headers, b"transfer-encoding")
    length = value_of(headers, b"content-length")
    if coding:
        if version == "1.0" or length or coding.lower() != b"chunked":
            raise BadRequest("only 'Transfer-Encoding: chunked' without a length is taken", 400)
        return None
    if length and not set(length) <= _DIGITS:
        raise BadRequest("Content-Length is no number", 400)
    return int(length or 0)


def value_of(headers: Iterable[Header], wanted: bytes) -> bytes:
    """The first value of a header, b"" when there is none."""
    for name, value in headers:
        if name == wanted:
            return value
    return b""


def has_body(method: bytes, status: int) -> bool:
    """Whether a response to `method` carries a body at all."""
    return method != b"HEAD" and status not in _NO_BODY and status >= 200


def response_head(status: int, headers: Iterable[Header]) -> bytes:
    """Status line and headers, without the empty line."""
    lines = [b"HTTP/1.1 %d %s\r\n" % (status, REASONS.get(status, b"Status"))]
    lines += [b"%s: %s\r\n" % pair for pair in headers]
    return b"".join(lines)


def request_head(method: bytes, target: bytes, headers: Iterable[Header], length: int) -> bytes:
    """A whole head whose body has `length` bytes."""
    lines = [b"%s %s HTTP/1.1\r\n" % (method, target)]
    lines += [b"%s: %s\r\n" % pair for pair in headers]
    if length or method not in (b"GET", b"HEAD", b"OPTIONS", b"DELETE"):
        lines.append(b"content-length: %d\r\n" % length)
    lines.append(b"\r\n")
    return b"".join(lines)


def retry_after_s(headers: Iterable[Header], default_s: float) -> float:
    """Seconds of a Retry-After header given as a number, else `default_s`; at most a minute."""
    value = value_of(headers, b"retry-after")
    if value and set(value) <= _DIGITS and len(value) < 9:
        return min(60.0, float(value))
    return default_s
