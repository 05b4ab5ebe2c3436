"""What clients may ask, in OpenAI's words, and the checks before an engine sees any of it.

A field that is unknown, or known and not done here, is refused by name: an answer made without an
option that was asked for would be wrong silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from moonpool.core.errors import did_you_mean

STOPS_MAX: Final = 16
STOP_CHARS_MAX: Final = 256
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")

T = TypeVar("T", bound="Sampled")

# Options of OpenAI that are not done here, each with the values that ask for nothing.
_NOT_DONE: Final[dict[str, tuple[object, ...]]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False, 0),
    "modalities": (["text"],),
    "n": (1,),
    "prediction": (),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "web_search_options": (),
}
_WHY: Final = {"tools": ": what a model writes to call a tool is not read here"}
# Options that change no token: taken, and not looked at.
_IGNORED: Final = frozenset(
    ("metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier")
    + ("store", "user")
)


class BadRequest(Exception):
    """A request that is refused, as OpenAI's clients expect it: a message, the field, a code."""

    def __init__(
        self, message: str, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of `stream_options`; obfuscation is padding against listeners on the wire, not done here."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Sampled(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both kinds of request share. None is "not given", as clients write it."""

    model: str | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    return_token_ids: bool | None = None

    @property
    def stops(self) -> list[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def usage_at_the_end(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class CompletionRequest(Sampled, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[Any]

    def one_prompt(self) -> str | list[int]:
        """The prompt as text or token ids. Raises BadRequest for several."""
        prompt: Any = self.prompt
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            if len(prompt) > 1:
                raise BadRequest(f"{len(prompt)} prompts; one a request is done here", "prompt")
            prompt = prompt[0]
        if isinstance(prompt, list) and any(type(token) is not int for token in prompt):
            raise BadRequest("a prompt is a text or a list of token ids", "prompt")
        found: str | list[int] = prompt
        return found


class Part(msgspec.Struct, frozen=True):
    """A piece of a message's content."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None

    def as_template_sees_it(self, number: int) -> dict[str, str]:
        """Role and plain text. Raises BadRequest for content that is no text."""
        where = f"messages[{number}].content"
        if self.content is None:
            raise BadRequest("a message needs content", where)
        if isinstance(self.content, str):
            return {"role": self.role, "content": self.content}
        texts = []
        for part in self.content:
            if part.type != "text" or part.text is None:
                raise BadRequest(
                    f"content of type '{part.type}' is not done here; only text", where
                )
            texts.append(part.text)
        return {"role": self.role, "content": "".join(texts)}


class ChatRequest(Sampled, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


def read_request(body: bytes, kind: type[T]) -> T:
    """`body` as a request of `kind`. Raises BadRequest that names the field."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadRequest("the body is no JSON object")
    request = _convert(_without_neutral(fields), kind)
    _check_stops(request.stops)
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options is only for stream = true", "stream_options")
    return request


def _without_neutral(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that mean something. Raises BadRequest for an option that is not done here."""
    kept = {}
    for name, value in fields.items():
        if name in _IGNORED or value is None:
            continue
        if name not in _NOT_DONE:
            kept[name] = value
        elif value not in _NOT_DONE[name]:
            allowed = " or ".join(msgspec.json.encode(v).decode() for v in _NOT_DONE[name])
            hint = f"; only {allowed}" if allowed else ""
            why = _WHY.get(name, "")
            raise BadRequest(
                f"{name} is not done by this server{hint}{why}", name, "unsupported_value"
            )
    return kept


def _convert(fields: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        message = str(error)
        if unknown := _UNKNOWN.match(message):
            known = [*kind.__struct_fields__, *_NOT_DONE, *_IGNORED]
            raise BadRequest(
                f"unknown option '{unknown[1]}'.{did_you_mean(unknown[1], known)}",
                unknown[1],
                "unknown_parameter",
            ) from None
        where = _PATH.search(message)
        names = [where[1] if where else ""]
        if missing := _MISSING.match(message):
            names.append(missing[1])
        raise BadRequest(_PATH.sub("", message), ".".join(filter(None, names)) or None) from None


def _check_stops(stops: list[str]) -> None:
    if len(stops) > STOPS_MAX:
        raise BadRequest(f"{len(stops)} stop strings; at most {STOPS_MAX}", "stop")
    if not all(1 <= len(stop) <= STOP_CHARS_MAX for stop in stops):
        raise BadRequest(f"a stop string has 1 to {STOP_CHARS_MAX} characters", "stop")
