"""Objects over HTTP, for small use: GET, HEAD, PUT and DELETE of /v1/objects/KEY.

A body is taken in pieces and refused once it is too long; a key is the rest of the path, unquoted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from moonpool.core.admin_section import AdminConfig
from moonpool.core.errors import BadInput, ObjectTooLarge, PoolError
from moonpool.pool.aio import AsyncPool
from moonpool.pool.results import Hit, Miss, MissReason, PutStatus, RemoveStatus

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

BINARY: Final = "application/octet-stream"
_MISSES: Final = {
    MissReason.ABSENT: 404,
    MissReason.EVICTED: 404,
    MissReason.EXPIRED: 404,
    MissReason.REFUSED: 403,
}
_PUT_OPTIONS: Final = frozenset({"replicas", "min_replicas", "parent", "ttl_s", "replace"})


class Objects:
    """The four methods over one pool; at most `requests_max` at a time."""

    def __init__(self, pool: AsyncPool, config: AdminConfig) -> None:
        self._pool = pool
        self._bytes_max = config.object_bytes_max
        self._requests_max = config.requests_max
        self._running = 0

    async def handle(self, request: Request) -> Response:
        """Raises MoonpoolError; the application says it as JSON."""
        from starlette.responses import JSONResponse

        if self._running >= self._requests_max:
            return JSONResponse(
                _problem("busy", f"{self._requests_max} requests are under way; try again"),
                503,
                {"retry-after": "1"},
            )
        self._running += 1
        try:
            key = request.path_params["key"].encode()
            match request.method:
                case "PUT":
                    return await self._put(key, request)
                case "DELETE":
                    return await self._delete(key)
                case method:
                    return await self._get(key, body=method == "GET")
        finally:
            self._running -= 1

    async def _get(self, key: bytes, body: bool) -> Response:
        from starlette.responses import JSONResponse, Response

        size = await self._size_of(key)
        if size is not None and size > self._bytes_max:
            raise ObjectTooLarge(
                f"{key!r} has {size} bytes; over HTTP at most {self._bytes_max} go"
            )
        if not body:
            headers = {} if size is None else {"content-length": str(size), "content-type": BINARY}
            return Response(None, 404 if size is None else 200, headers)
        answer = (await self._pool.get_many([key]))[0]
        if isinstance(answer, Miss):
            text = answer.text or f"{key!r} is a miss: {answer.reason}"
            status = _MISSES.get(answer.reason, 503)
            return JSONResponse(_problem(answer.reason.value, text), status)
        assert isinstance(answer, Hit) and answer.data is not None
        headers = {"x-moonpool-node": answer.node, "cache-control": "no-store"}
        return Response(answer.data, 200, headers, BINARY)

    async def _size_of(self, key: bytes) -> int | None:
        match_ = await self._pool.match_prefix([key])
        return match_.size if match_.count else None

    async def _put(self, key: bytes, request: Request) -> Response:
        from starlette.responses import JSONResponse

        options = put_options(request.query_params)
        value = await self._body(request)
        result = await self._pool.put(key, value, **options)
        status = {PutStatus.STORED: 201, PutStatus.IN_FLIGHT: 409}.get(result.status, 200)
        told = {"status": result.status.value, "replicas": result.replicas, "size": len(value)}
        return JSONResponse(told, status)

    async def _delete(self, key: bytes) -> Response:
        from starlette.responses import JSONResponse

        status = await self._pool.remove(key)
        return JSONResponse(
            {"status": status.value},
            {RemoveStatus.ABSENT: 404, RemoveStatus.UNREACHABLE: 503}.get(status, 200),
        )

    async def _body(self, request: Request) -> bytes:
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._bytes_max:
            raise ObjectTooLarge(f"a body of {length} bytes; at most {self._bytes_max} are taken")
        pieces, size = [], 0
        async for piece in request.stream():
            size += len(piece)
            if size > self._bytes_max:
                raise ObjectTooLarge(f"the body is longer than {self._bytes_max} bytes")
            pieces.append(piece)
        return b"".join(pieces)


def put_options(query: Mapping[str, str]) -> dict[str, Any]:
    """Options of a put from a query string. Raises BadInput."""
    unknown = sorted(set(query) - _PUT_OPTIONS)
    if unknown:
        raise BadInput(
            f"unknown option {unknown[0]!r}; there are {', '.join(sorted(_PUT_OPTIONS))}"
        )
    options: dict[str, Any] = {}
    try:
        for name, kind in (("replicas", int), ("min_replicas", int), ("ttl_s", float)):
            if name in query:
                options[name] = kind(query[name])
    except ValueError:
        raise BadInput(f"{name}={query[name]!r} is no number") from None
    if "parent" in query:
        options["parent"] = query["parent"]
    if query.get("replace", "false") not in ("true", "false"):
        raise BadInput(f"replace={query['replace']!r} is neither true nor false")
    if query.get("replace") == "true":
        options["replace"] = True
    return options


def status_of(error: Exception) -> int:
    """The HTTP status of one of our errors."""
    if isinstance(error, ObjectTooLarge):
        return 413
    if isinstance(error, BadInput):
        return 400
    return 507 if isinstance(error, PoolError) else 503


def _problem(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}
