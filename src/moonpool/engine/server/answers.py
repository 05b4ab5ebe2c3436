"""Answers in OpenAI's shapes: whole, in pieces, and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from moonpool.engine.request import Reuse

DONE: Final = b"data: [DONE]\n\n"

Record = dict[str, Any]


def event(record: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(record) + b"\n\n"


def error_record(
    message: str, kind: str, param: str | None = None, code: str | None = None
) -> Record:
    """What OpenAI's clients turn into their exceptions."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def usage_record(prompt_tokens: int, completion_tokens: int, reuse: Reuse) -> Record:
    """Tokens of one request; `moonpool` says where those came from that were not computed."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": reuse.tokens,
            "moonpool": reuse._asdict(),
        },
    }


class Shape:
    """How answers of one kind look; `identity` are the fields that every piece repeats."""

    prefix = "cmpl"
    whole = "text_completion"
    piece = "text_completion"

    def __init__(self, number: str, model: str, created: int) -> None:
        self._identity = {"id": f"{self.prefix}-{number}", "created": created, "model": model}

    def answer(
        self, text: str, finish: str, usage: Record, extra: Mapping[str, Any] | None = None
    ) -> Record:
        """The whole answer at once."""
        choice = {"index": 0, **self._text(text), "logprobs": None, "finish_reason": finish}
        return {
            **self._identity,
            "object": self.whole,
            "choices": [{**choice, **(extra or {})}],
            "usage": usage,
        }

    def opening(self) -> Record | None:
        """A piece before the first text, when the kind has one."""
        return None

    def part(
        self, text: str, finish: str | None = None, extra: Mapping[str, Any] | None = None
    ) -> Record:
        """A piece of a streamed answer."""
        choice = {"index": 0, **self._delta(text), "logprobs": None, "finish_reason": finish}
        return self._piece([{**choice, **(extra or {})}])

    def closing(self, usage: Record) -> Record:
        """The last piece, when the client asked for usage: no text, the counts."""
        return {**self._piece([]), "usage": usage}

    def _piece(self, choices: Sequence[Record]) -> Record:
        return {**self._identity, "object": self.piece, "choices": choices}

    def _text(self, text: str) -> Record:
        return {"text": text}

    def _delta(self, text: str) -> Record:
        return {"text": text}


class ChatShape(Shape):
    """Answers of /v1/chat/completions."""

    prefix = "chatcmpl"
    whole = "chat.completion"
    piece = "chat.completion.chunk"

    def opening(self) -> Record | None:
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
        return self._piece([{**choice, "finish_reason": None}])

    def _text(self, text: str) -> Record:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _delta(self, text: str) -> Record:
        return {"delta": {"content": text} if text else {}}
