"""The admin service's HTTP face: page, metrics, health, the pool's figures, and its objects.

With a token every path but the page and /health wants `Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import hmac
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from moonpool.core.admin_section import AdminConfig
from moonpool.core.errors import BadInput, MoonpoolError, missing_extra
from moonpool.dashboard.metrics import metrics_page
from moonpool.dashboard.objects import Objects, status_of
from moonpool.dashboard.openapi import description
from moonpool.dashboard.story import explain_key, explain_request
from moonpool.dashboard.tasks import TaskRoutes
from moonpool.dashboard.watch import Watch
from moonpool.pool.aio import AsyncPool

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

LIST_MAX: Final = 10_000
EVENTS_MAX: Final = 10_000
WAIT_MAX_S: Final = 30.0
_OPEN: Final = frozenset({"/", "/health"})
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_OBJECT_METHODS: Final = ["GET", "HEAD", "PUT", "DELETE"]


class Admin:
    """The routes of `application`, over one pool and one watch."""

    def __init__(self, pool: AsyncPool, watch: Watch, config: AdminConfig) -> None:
        self._pool = pool
        self._watch = watch
        self._token = config.token.encode()
        self._objects = Objects(pool, config)
        self._tasks = TaskRoutes(pool)

    def application(self) -> Starlette:
        """Raises MissingExtra without Starlette."""
        try:
            from starlette.applications import Starlette
            from starlette.middleware import Middleware
            from starlette.routing import Route
        except ImportError:
            raise missing_extra("the admin service", "admin") from None
        routes = [
            Route("/", self._page),
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/metrics", self._metrics),
            Route("/openapi.json", self._openapi),
            Route("/v1/stat", self._stat),
            Route("/v1/history", self._history),
            Route("/v1/events", self._events),
            Route("/v1/objects", self._list),
            Route("/v1/objects/{key:path}", self._objects.handle, methods=_OBJECT_METHODS),
            Route("/v1/tasks", self._tasks.all, methods=["GET", "POST"]),
            Route("/v1/tasks/{id}", self._tasks.one, methods=["GET", "DELETE"]),
            Route("/v1/explain", self._explain_request),
            Route("/v1/explain/{key:path}", self._explain),
        ]
        return Starlette(
            routes=routes,
            middleware=[Middleware(_Guard, admin=self)],
            exception_handlers={MoonpoolError: _said},
        )

    def admitted(self, path: str, authorization: bytes) -> bool:
        if not self._token or path in _OPEN:
            return True
        kind, _, given = authorization.partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._token)

    async def _page(self, request: Request) -> Response:
        from starlette.responses import HTMLResponse

        page = files("moonpool.dashboard").joinpath("page.html").read_text("utf-8")
        return HTMLResponse(page, headers=_HEADERS)

    async def _health(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        why = self._watch.unready
        return _json({"ready": not why, "why": why}, 503 if why else 200)

    async def _metrics(self, request: Request) -> Response:
        from starlette.responses import PlainTextResponse

        page = metrics_page(self._watch)
        return PlainTextResponse(page, media_type="text/plain; version=0.0.4")

    async def _openapi(self, request: Request) -> Response:
        return _json(description())

    async def _stat(self, request: Request) -> Response:
        last = self._watch.last
        if last is None:
            return _json(_error("unreachable", self._watch.why_not), 503)
        return _json({**last.figures, "unready": self._watch.unready})

    async def _history(self, request: Request) -> Response:
        return _json([one._asdict() for one in self._watch.history()])

    async def _events(self, request: Request) -> Response:
        query = request.query_params
        term, sequence = _number(query, "term", 0), _number(query, "sequence", 0)
        limit = min(_number(query, "limit", 1000), EVENTS_MAX)
        wait_s = min(float(_number(query, "wait_s", 0)), WAIT_MAX_S)
        batch = await self._pool.events(
            (term, sequence), limit=limit, wait_s=wait_s, timeout_s=wait_s + 5.0
        )
        return _json(
            {
                "events": [
                    {
                        "term": event.term,
                        "sequence": event.sequence,
                        "kind": event.kind,
                        "key": _text(event.key),
                        "parent": _text(event.parent),
                        "size": event.size,
                        "node": event.node,
                        "medium": event.medium,
                        "wall_ms": event.wall_ms,
                    }
                    for event in batch.events
                ],
                "term": batch.position[0],
                "next_sequence": batch.position[1],
                "rebase": batch.rebase,
            }
        )

    async def _list(self, request: Request) -> Response:
        query = request.query_params
        limit = max(1, min(_number(query, "limit", 1000), LIST_MAX))
        found: list[dict[str, Any]] = []
        cursor: int | None = _number(query, "cursor", 0)
        while cursor is not None and len(found) < limit:
            page = await self._pool.list_page(
                query.get("prefix", ""), cursor=cursor, limit=limit - len(found)
            )
            found += [
                {"key": _text(one.key), "size": one.size, "replicas": one.replicas}
                for one in page.objects
            ]
            cursor = page.cursor
        return _json({"objects": found, "more": cursor is not None, "next_cursor": cursor})

    async def _explain(self, request: Request) -> Response:
        return _json(await explain_key(self._pool, request.path_params["key"].encode()))

    async def _explain_request(self, request: Request) -> Response:
        keys = [key.encode() for key in request.query_params.getlist("key")]
        if not keys:
            raise BadInput("name the request's keys in order: ?key=FIRST&key=SECOND")
        return _json(await explain_request(self._pool, keys))


class _Guard:
    """ASGI middleware: no request without the token reaches a route."""

    def __init__(self, app: Any, admin: Admin) -> None:
        self._app = app
        self._admin = admin

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            if not self._admin.admitted(scope["path"], headers.get(b"authorization", b"")):
                refused = _json(
                    _error("refused", "give 'Authorization: Bearer TOKEN'"),
                    401,
                    {"www-authenticate": "Bearer"},
                )
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _said(request: Request, error: Exception) -> Response:
    assert isinstance(error, MoonpoolError)
    return _json(_error(error.code, str(error)), status_of(error))


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(value, status, headers)


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


def _number(query: Any, name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise BadInput(f"{name}={text!r} is no number")
    return int(text)


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
