"""What a request of OpenAI's API asks for, as far as routing has to know. Pure.

A body is decoded once, into the few fields that matter; the rest stays raw bytes and is passed on
as it came. Prompts that are token ids already are taken as they are, texts go through the workers'
tokenizer.
"""

from __future__ import annotations

import re
from array import array
from typing import Annotated, Any, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from moonpool.core.errors import BadInput, BadRequest
from moonpool.router.http.request import Request

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
_IDS: Final = re.compile(rb'"prompt"\s*:\s*\[\s*\d')
_IDS_WITHIN: Final = 4096
_NUMBER_MAX: Final = (1 << 31) - 1
_WORKER, _LABELS, _TOLERATES = b"x-route-worker", b"x-route-labels", b"x-route-tolerates"
WISHES: Final = frozenset((_WORKER, _LABELS, _TOLERATES))
"""Headers in which a client says which workers it wants; they are not passed on."""
_EMPTY: Final = np.zeros(0, np.uint32)

TokenId = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]


class TextReader(Protocol):
    """Text to the token ids that the workers would make of it."""

    def encode(self, text: str) -> list[int]: ...
    def encode_chat(self, messages: Any) -> list[int]: ...


class BytesReader:
    """For routers without a tokenizer: four bytes count as one token.

    Equal texts still go to the same worker, by the router's own decisions; what workers publish
    speaks of real tokens and never matches.
    """

    def encode(self, text: str) -> list[int]:
        return self._ids(text.encode())

    def encode_chat(self, messages: Any) -> list[int]:
        return self._ids(msgspec.json.encode(messages)[:-1])  # a longer conversation goes on there

    def _ids(self, data: bytes) -> list[int]:
        whole = len(data) // 4 * 4
        ids: list[int] = np.frombuffer(data[:whole], np.uint32).tolist()
        return ids or [len(data)]


class _Body(msgspec.Struct):
    """Fields of a request that the router reads; others are not looked at."""

    model: str = ""
    prompt: Any = None
    """Text or token ids, or a list of one of them."""
    messages: list[dict[str, Any]] | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    cache_salt: str | None = None
    priority: int | None = None
    user: str | None = None


class _TokenBody(_Body):
    """The usual case, tried first: one list of token ids."""

    prompt: list[TokenId] | None = None


class Ask(msgspec.Struct, frozen=True):
    """One request's question to the brain."""

    model: str = ""
    tokens: npt.NDArray[np.uint32] = msgspec.field(default_factory=lambda: _EMPTY)
    output_tokens: int = 0
    stream: bool = False
    namespace: str = ""
    priority: int = 0
    session: str = ""
    split: bool = False
    """True for what a prefill worker could begin: one prompt, generated from."""
    worker: str = ""
    """Only this one; empty: any."""
    labels: dict[str, str] = {}
    tolerates: frozenset[str] = frozenset()


_token_decoder: Final = msgspec.json.Decoder(_TokenBody)
_decoder: Final = msgspec.json.Decoder(_Body)
_raw_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_ask(request: Request, reader: TextReader, tokens_max: int) -> Ask:
    """What `request` asks for. Raises BadRequest with the status to answer."""
    wishes = _wishes(request)
    if request.method != b"POST" or request.path not in (COMPLETIONS, CHAT):
        return Ask(session=_session(request), **wishes)
    body = _decode(request.body)
    tokens, alone = _tokens(request.path, body, reader)
    if len(tokens) > tokens_max:
        raise BadRequest(f"the prompt has {len(tokens)} tokens; at most {tokens_max} are taken")
    return Ask(
        model=body.model,
        tokens=tokens,
        output_tokens=_bounded(max(0, body.max_completion_tokens or body.max_tokens or 0)),
        stream=bool(body.stream),
        namespace=body.cache_salt or "",
        priority=_bounded(body.priority or 0),
        session=_session(request),
        split=alone,
        **wishes,
    )


def raw_fields(body: bytes) -> dict[str, msgspec.Raw]:
    """The body's top level, its values not looked into. Raises BadRequest."""
    try:
        return _raw_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON object: {error}") from None


def may_be_text(request: Request) -> bool:
    """Whether the prompt may be text, which takes longer to read than ids do."""
    return request.path == CHAT or _IDS.search(request.body, 0, _IDS_WITHIN) is None


def _decode(body: bytes) -> _Body:
    try:
        return _token_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is no request of this API: {error}") from None


def _tokens(path: str, body: _Body, reader: TextReader) -> tuple[npt.NDArray[np.uint32], bool]:
    """The prompt's tokens, of several prompts the first one's; and whether there is just one."""
    if path == CHAT:
        if not body.messages:
            raise BadRequest("messages is missing or empty")
        return _read(reader, body.messages), True
    prompt: Any = body.prompt
    if not prompt:
        raise BadRequest("prompt is missing or empty")
    alone = True
    if isinstance(prompt, list) and isinstance(prompt[0], str | list):
        alone, prompt = len(prompt) == 1, prompt[0]
        if not prompt:
            raise BadRequest("the first prompt is empty")
    if isinstance(prompt, str):
        return _read(reader, prompt), alone
    if not isinstance(body, _TokenBody):
        prompt = _token_ids(prompt)
    return np.frombuffer(array("I", prompt), np.uint32), alone


def _token_ids(prompt: Any) -> list[int]:
    try:
        return msgspec.convert(prompt, list[TokenId])
    except msgspec.ValidationError as error:
        raise BadRequest(f"prompt is no text and no list of token ids: {error}") from None


def _read(reader: TextReader, text: Any) -> npt.NDArray[np.uint32]:
    try:
        ids = reader.encode(text) if isinstance(text, str) else reader.encode_chat(text)
    except BadInput as error:
        raise BadRequest(str(error)) from None
    except RecursionError:
        raise BadRequest("the prompt is nested too deeply") from None
    return np.array(ids, np.uint32)


def _bounded(number: int) -> int:
    """JSON's numbers have any length, and a cost is a float; the worker gets it as it came."""
    return max(-_NUMBER_MAX, min(number, _NUMBER_MAX))


def _wishes(request: Request) -> dict[str, Any]:
    """Fields of an Ask."""
    found: dict[str, Any] = {}
    for name, value in request.headers:
        if name not in WISHES:
            continue
        text = value.decode("latin-1")
        words = [word.strip() for word in text.split(",") if word.strip()]
        if name == _WORKER:
            found["worker"] = text.strip()
        elif name == _TOLERATES:
            found["tolerates"] = frozenset(words)
        else:
            pairs = [word.partition("=") for word in words]
            if not all(key and value for key, _, value in pairs):
                raise BadRequest(f"{name.decode()}: {text!r} is not key=value,key=value")
            found["labels"] = {key: value for key, _, value in pairs}
    return found


def _session(request: Request) -> str:
    return request.header(b"x-session-id").decode("latin-1")[:128]
