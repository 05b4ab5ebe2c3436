"""Copies, moves and clearings over HTTP: POST and GET /v1/tasks, GET and DELETE /v1/tasks/ID.

The master does them; nothing of them lives here. A body is taken up to a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from moonpool.core.errors import BadInput, BadSize
from moonpool.pool.aio import AsyncPool
from moonpool.pool.results import TaskInfo, TaskState, task_figures
from moonpool.pool.tasks import DEADLINE_S

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

BODY_BYTES_MAX: Final = 16 << 20
_GONE: Final = (TaskState.LOST, TaskState.UNKNOWN)


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    keys: list[str]
    to: str = ""
    source: str = ""
    deadline_s: float = DEADLINE_S


class TaskRoutes:
    """The four calls over one pool."""

    def __init__(self, pool: AsyncPool) -> None:
        self._pool = pool

    async def all(self, request: Request) -> Response:
        """Raises MoonpoolError; the application says it as JSON."""
        if request.method != "POST":
            return _json({"tasks": [_record(info) for info in await self._pool.tasks()]})
        body = await _body(request)
        match body.kind:
            case "copy" if not body.source:
                task = await self._pool.copy(body.keys, body.to, deadline_s=body.deadline_s)
            case "move":
                task = await self._pool.move(
                    body.keys, body.to, source=body.source, deadline_s=body.deadline_s
                )
            case "clear" if not body.to:
                task = await self._pool.clear(body.keys, body.source, deadline_s=body.deadline_s)
            case _:
                raise BadInput(
                    "kind is copy (with to), move (with to, source if you like) or clear "
                    f"(with source), not {body.kind!r}"
                )
        return _json(_record(await task.info()), 202)

    async def one(self, request: Request) -> Response:
        """404 for one that is lost with an earlier master (begin it anew) or unknown."""
        task = self._pool.task(request.path_params["id"])
        info = await (task.cancel() if request.method == "DELETE" else task.info())
        if info.state in _GONE:
            return _json(_record(info), 404)
        keys = [
            {"key": key.decode("utf-8", "backslashreplace"), "outcome": outcome.value}
            for key, outcome in await task.results()
        ]
        return _json({**_record(info), "results": keys})


async def _body(request: Request) -> _Body:
    """Raises BadInput."""
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > BODY_BYTES_MAX:
            raise BadSize(f"a body of more than {BODY_BYTES_MAX} bytes; name fewer keys a task")
        pieces.append(piece)
    try:
        return msgspec.json.decode(b"".join(pieces), type=_Body)
    except msgspec.MsgspecError as error:
        raise BadInput(f"the body is no task: {error}") from None


def _record(info: TaskInfo) -> dict[str, Any]:
    return {"id": info.id, **task_figures(info)}


def _json(value: Any, status: int = 200) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(value, status)
