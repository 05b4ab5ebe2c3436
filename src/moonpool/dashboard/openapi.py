"""What the API is, in OpenAPI's words. A test compares the paths with the routes."""

from __future__ import annotations

from typing import Any, Final

import moonpool

_BINARY: Final = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_JSON: Final = {"application/json": {"schema": {"type": "object"}}}
_KEY: Final = {
    "name": "key",
    "in": "path",
    "required": True,
    "description": "The key, percent-encoded; slashes may stand as they are.",
    "schema": {"type": "string"},
}


def description() -> dict[str, Any]:
    """The document of /openapi.json."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Moonpool admin",
            "version": moonpool.__version__,
            "description": "A pool's figures and its objects, for people and small programs.",
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}],
        "paths": _PATHS,
    }


def _ask(text: str, *parameters: dict[str, Any], content: Any = None) -> dict[str, Any]:
    answers: dict[str, Any] = {
        "200": {"description": "The answer.", "content": content or _JSON},
        "401": {"description": "The token is missing or wrong."},
    }
    return {"summary": text, "parameters": list(parameters), "responses": answers}


def _query(name: str, kind: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": {"type": kind}}


_TEXT: Final = {"text/plain": {"schema": {"type": "string"}}}
_PAGE: Final = {"text/html": {"schema": {"type": "string"}}}
_TASK_ID: Final = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "As the answer to its beginning says.",
    "schema": {"type": "string"},
}
_TASK: Final = {
    "type": "object",
    "required": ["kind", "keys"],
    "properties": {
        "kind": {"enum": ["copy", "move", "clear"]},
        "keys": {"type": "array", "items": {"type": "string"}},
        "to": {"type": "string", "description": "The node that gets copies."},
        "source": {"type": "string", "description": "The node whose copies go."},
        "deadline_s": {"type": "number", "description": "It ends after so long; 60."},
    },
}
_PATHS: Final[dict[str, Any]] = {
    "/": {"get": _ask("The page for people.", content=_PAGE)},
    "/health": {"get": _ask("This process lives.")},
    "/ready": {"get": _ask("The pool takes requests; 503 and why when it does not.")},
    "/metrics": {"get": _ask("The figures as Prometheus reads them.", content=_TEXT)},
    "/openapi.json": {"get": _ask("This document.")},
    "/v1/stat": {"get": _ask("All that the master counts.")},
    "/v1/history": {"get": _ask("Rates over the last minutes, as the page draws them.")},
    "/v1/events": {
        "get": _ask(
            "Changes from a position on; `rebase`: the position is gone, list first.",
            _query("term", "integer", "Of the position."),
            _query("sequence", "integer", "Of the position."),
            _query("limit", "integer", "Events at most."),
            _query("wait_s", "integer", "Wait so long for the first."),
        )
    },
    "/v1/objects": {
        "get": _ask(
            "Keys, sizes and copies.",
            _query("prefix", "string", "Only keys that begin so."),
            _query("limit", "integer", "At most so many."),
            _query("cursor", "integer", "Where to go on: `next_cursor` of the page before."),
        )
    },
    "/v1/objects/{key}": {
        "get": _ask("The bytes.", _KEY, content=_BINARY),
        "head": _ask("The size, as content-length.", _KEY),
        "put": {
            **_ask(
                "Store the body; a key that is there stays as it is, unless `replace=true`.",
                _KEY,
                _query("replicas", "integer", "Copies."),
                _query("min_replicas", "integer", "Copies that must be sealed."),
                _query("parent", "string", "Key of the block before."),
                _query("ttl_s", "number", "Time to live."),
                _query("replace", "boolean", "Replace what is there."),
            ),
            "requestBody": {"required": True, "content": _BINARY},
        },
        "delete": _ask("Remove it.", _KEY),
    },
    "/v1/tasks": {
        "get": _ask("Copies, moves and clearings that run or ended lately."),
        "post": {
            **_ask("Begin one; 202 and its id."),
            "requestBody": {"required": True, "content": {"application/json": {"schema": _TASK}}},
        },
    },
    "/v1/tasks/{id}": {
        "get": _ask("How far it is, and what became of each key.", _TASK_ID),
        "delete": _ask("Cancel it; what was done stays.", _TASK_ID),
    },
    "/v1/explain": {
        "get": _ask(
            "How far a request's prefix reaches, and why it ends there.",
            _query("key", "string", "Its keys in order, one parameter each."),
        )
    },
    "/v1/explain/{key}": {"get": _ask("Where it lies, or why it is a miss.", _KEY)},
}
