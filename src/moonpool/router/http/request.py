"""Requests as they come in: parsed by llhttp (httptools), bounded, refused when ambiguous."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moonpool.core.errors import BadRequest
from moonpool.router.http.rules import Header, Limits, check_request_head, value_of


class Request:
    """One whole request. Header names are in lower case; the body is as the sender meant it."""

    __slots__ = ("body", "headers", "keep_alive", "method", "path", "query", "target", "version")

    def __init__(
        self,
        method: bytes,
        target: bytes,
        headers: list[Header],
        body: bytes = b"",
        version: str = "1.1",
        keep_alive: bool = True,
    ) -> None:
        self.method = method
        self.target = target
        path, _, query = target.partition(b"?")
        self.path = path.decode("latin-1")
        self.query = query.decode("latin-1")
        self.headers = headers
        self.body = body
        self.version = version
        self.keep_alive = keep_alive

    def header(self, name: bytes) -> bytes:
        """The first value of a header, b"" when there is none."""
        return value_of(self.headers, name)


class RequestReader:
    """Bytes of one connection in, whole requests out.

    States: between requests -> in a head -> in a body -> between requests. Any error ends it; what
    came before stays valid. `feed` raises BadRequest.
    """

    def __init__(
        self,
        limits: Limits,
        on_request: Callable[[Request], None],
        on_expect: Callable[[], None],
    ) -> None:
        from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

        self._limits = limits
        self._on_request = on_request
        self._on_expect = on_expect
        self._parser: Any = HttpRequestParser(self)
        self._upgrade: type[Exception] = HttpParserUpgrade
        self._error: type[Exception] = HttpParserError
        self._refused: BadRequest | None = None
        self._url = b""
        self._headers: list[Header] = []
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._length: int | None = 0
        self._upgrading = False
        self.in_request = False
        self.in_body = False
        self.upgraded = False
        """True once nothing more can be read: the connection ends with the last request."""

    def feed(self, data: bytes) -> None:
        if self.upgraded:
            return
        if self._upgrading:
            self._read_upgrading(data)
            return
        try:
            self._parser.feed_data(data)
        except self._upgrade as wish:
            self._read_upgrading(data[wish.args[0] :])
        except self._error as error:
            raise self._refused or BadRequest(f"no valid HTTP request: {error}") from None
        if self.in_request and not self.in_body:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.head_bytes_max:
                raise self._too_long_head()

    # Called by the parser; what they raise comes out of feed_data as HttpParserCallbackError.

    def on_message_begin(self) -> None:
        self.in_request, self.in_body = True, False
        self._url, self._headers, self._head_bytes = b"", [], 0
        self._body, self._body_bytes = [], 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_body:
            return  # a trailer: never passed on
        if len(self._headers) >= self._limits.headers_max:
            self._refuse(BadRequest(f"more than {self._limits.headers_max} headers", 431))
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        size = len(self._url) + sum(len(name) + len(value) for name, value in self._headers)
        if size > self._limits.head_bytes_max:
            self._refuse(self._too_long_head())
        try:
            length = check_request_head(
                self._parser.get_method(),
                self._url,
                self._parser.get_http_version(),
                self._headers,
            )
        except BadRequest as error:
            self._refuse(error)
        self._length = length
        if length is not None and length > self._limits.body_bytes_max:
            self._refuse(self._too_large_body())
        self.in_body = True
        if value_of(self._headers, b"expect").lower() == b"100-continue":
            self._on_expect()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.body_bytes_max:
            self._refuse(self._too_large_body())
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            self._upgrading = True  # the parser stops here, before any body
        else:
            self._finish()

    def _read_upgrading(self, data: bytes) -> None:
        """A request that wishes for another protocol: it is served, the wish is not.

        The parser reads no further, so its body is taken by its length and it is the last one.
        """
        length = self._length
        if length is None:
            raise BadRequest("chunks and an upgrade in one request are not taken")
        if data and length:
            self.on_body(data[: length - self._body_bytes])
        if self._body_bytes == length:
            self.upgraded = True
            self._finish()

    def _finish(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        request = Request(
            self._parser.get_method(),
            self._url,
            self._headers,
            body,
            self._parser.get_http_version(),
            self._parser.should_keep_alive() and not self._upgrading,
        )
        self.in_request = self.in_body = False
        self._body, self._headers = [], []
        self._on_request(request)

    def _refuse(self, error: BadRequest) -> None:
        self._refused = error
        raise error

    def _too_long_head(self) -> BadRequest:
        return BadRequest(f"the head is over {self._limits.head_bytes_max} bytes", 431)

    def _too_large_body(self) -> BadRequest:
        return BadRequest(f"the body is over {self._limits.body_bytes_max} bytes", 413)
