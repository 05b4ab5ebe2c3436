"""Asks an engine over HTTP as any client would, and takes the times a client sees."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from moonpool.core.errors import Unreachable

TIMEOUT_S: Final = 120.0
_BROKEN: Final = (OSError, http.client.HTTPException)
"""What http.client raises when nobody is there, or no longer."""


@dataclass(frozen=True)
class Answer:
    """Text and tokens of one answer, where its prompt's keys and values came from, and times.

    `ttft_ms` runs from before the request is sent until its first token is here; `token_ms` is the
    mean time between the tokens after it.
    """

    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    local_tokens: int
    pool_tokens: int
    ttft_ms: float
    token_ms: float


def ask(port: int, messages: Sequence[Mapping[str, str]], *, salt: str, max_tokens: int) -> Answer:
    """One streamed chat completion, greedy. Raises Unreachable when it breaks off."""
    body = {
        "messages": messages,
        "temperature": 0,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_salt": salt,
        "return_token_ids": True,
    }
    start = time.perf_counter()
    text = ""
    tokens: list[int] = []
    times: list[float] = []
    usage: dict[str, Any] = {}
    for event in _events(port, json.dumps(body)):
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            text += choice["delta"].get("content", "")
            if new := choice.get("token_ids"):
                tokens += new
                times.append(time.perf_counter())
    if not usage or not times:
        raise Unreachable(f"the engine on port {port} broke off its answer")
    reuse = usage["prompt_tokens_details"]["moonpool"]
    return Answer(
        text,
        tuple(tokens),
        usage["prompt_tokens"],
        reuse["local_tokens"],
        reuse["pool_tokens"],
        (times[0] - start) * 1e3,
        (times[-1] - times[0]) * 1e3 / max(1, len(tokens) - 1),
    )


def figures(port: int) -> dict[str, float]:
    """The engine's counters and gauges, by the names of its metrics page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    except _BROKEN as error:
        raise Unreachable(f"the engine on port {port} does not answer: {error}") from None
    finally:
        connection.close()
    pairs = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def _events(port: int, body: str) -> Iterator[dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        response = connection.getresponse()
        if response.status != 200:
            message = json.loads(response.read())["error"]["message"]
            raise Unreachable(f"the engine on port {port} refused: {message}")
        for line in response:
            if line.startswith(b"data: {"):
                event: dict[str, Any] = json.loads(line[len(b"data: ") :])
                if "error" in event:
                    raise Unreachable(f"the engine gave up: {event['error']['message']}")
                yield event
    except _BROKEN as error:
        raise Unreachable(f"the engine on port {port} does not answer: {error}") from None
    finally:
        connection.close()
