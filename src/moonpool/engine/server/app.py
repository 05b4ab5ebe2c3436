"""The OpenAI face of an engine, as an ASGI application.

    POST /v1/completions, /v1/chat/completions      GET /v1/models, /health, /metrics

It checks what clients send, turns text into tokens and steps into answers. It knows no model.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from moonpool.core.errors import BadInput, EngineBusy, MoonpoolError
from moonpool.engine.detokenizer import TextStream
from moonpool.engine.engine import Engine
from moonpool.engine.request import Request
from moonpool.engine.server import answers
from moonpool.engine.server.exchange import Exchange, Gone, Receive, Send
from moonpool.engine.server.generation import Generation, Piece
from moonpool.engine.server.metrics import Metrics
from moonpool.engine.server.requests import (
    BadRequest,
    ChatRequest,
    CompletionRequest,
    Message,
    Sampled,
    read_request,
)
from moonpool.engine.tokenizer import Tokenizer

COMPLETION_TOKENS_DEFAULT: Final = 16  # OpenAI's
ASIDE_CHARACTERS: Final = 32_768
"""Some ten milliseconds of tokenizing."""
_ROUTES: Final = {
    "/v1/completions": "POST",
    "/v1/chat/completions": "POST",
    "/v1/models": "GET",
    "/health": "GET",
    "/metrics": "GET",
}
_OPEN: Final = ("/health",)  # asked by supervisors, which hold no key


@dataclass(frozen=True)
class Served:
    """How the model is called here, and the key that clients must show ("" for none)."""

    name: str
    api_key: str = ""


class Application:
    """One engine's server; give it to any ASGI server."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, served: Served) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._served = served
        self._created = int(time.time())
        self.metrics = Metrics()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", scope["type"]
        exchange = Exchange(scope, receive, send)
        try:
            await self._route(exchange)
        except Gone:
            self.metrics.ended("aborted")
        except BadRequest as error:
            self.metrics.ended("refused")
            await self._refuse(exchange, error.status, str(error), error.param, error.code)
        except BadInput as error:
            self.metrics.ended("refused")
            await self._refuse(exchange, 400, str(error))
        except EngineBusy as error:
            self.metrics.ended("overloaded")
            await self._refuse(exchange, 503, str(error), wait_s=error.retry_after_s)
        except MoonpoolError as error:
            self.metrics.ended("error")
            await self._refuse(exchange, 500, str(error), code=error.code)

    async def _route(self, exchange: Exchange) -> None:
        method = _ROUTES.get(exchange.path)
        if method is None:
            raise BadRequest(
                f"there is nothing at {exchange.path}; here are {', '.join(_ROUTES)}", status=404
            )
        if exchange.method != method:
            raise BadRequest(f"{exchange.path} takes {method}, not {exchange.method}", status=405)
        self._check_key(exchange)
        if exchange.path == "/v1/completions":
            await self._completions(exchange)
        elif exchange.path == "/v1/chat/completions":
            await self._chat(exchange)
        elif exchange.path == "/v1/models":
            await exchange.answer(200, {"object": "list", "data": [self._model_record()]})
        elif exchange.path == "/metrics":
            await exchange.answer(200, self.metrics.page(self._engine.figures()))
        elif stopped := self._engine.stopped:
            await exchange.answer(503, {"status": "stopped", "reason": stopped})
        else:
            await exchange.answer(200, {"status": "ok", "model": self._served.name})

    def _model_record(self) -> answers.Record:
        return {
            "id": self._served.name,
            "object": "model",
            "created": self._created,
            "owned_by": "moonpool",
            "max_model_len": self._engine.context_tokens,
            "kv_blocks": self._engine.kv_blocks,
        }

    async def _completions(self, exchange: Exchange) -> None:
        request = read_request(await exchange.body(), CompletionRequest)
        self._check_model(request)
        prompt = request.one_prompt()
        if isinstance(prompt, str):
            tokens = await _aside(len(prompt), lambda: self._tokenizer.encode(prompt))
        else:
            tokens = prompt
        most = request.max_tokens or min(
            COMPLETION_TOKENS_DEFAULT, max(1, self._engine.context_tokens - len(tokens))
        )
        await self._generate(exchange, request, tokens, most, answers.Shape)

    async def _chat(self, exchange: Exchange) -> None:
        request = read_request(await exchange.body(), ChatRequest)
        self._check_model(request)
        messages = [Message.as_template_sees_it(m, i) for i, m in enumerate(request.messages)]
        try:
            size = sum(len(message["content"]) for message in messages)
            tokens = await _aside(size, lambda: self._tokenizer.encode_chat(messages))
        except BadInput as error:
            raise BadRequest(str(error), "messages") from None
        most = request.max_completion_tokens or request.max_tokens
        left = max(1, self._engine.context_tokens - len(tokens))
        await self._generate(exchange, request, tokens, most or left, answers.ChatShape)

    async def _generate(
        self,
        exchange: Exchange,
        request: Sampled,
        tokens: list[int],
        most: int,
        shape: type[answers.Shape],
    ) -> None:
        self._check_length(len(tokens), most)
        asked = self._request(request, tokens, most)
        generation = Generation(
            self._engine, asked, TextStream(self._tokenizer.decode, request.stops), self.metrics
        )
        number = exchange.headers.get("x-request-id") or uuid.uuid4().hex
        form = shape(number, self._served.name, int(time.time()))
        headers = {"x-request-id": number}
        if request.stream:
            await self._stream(exchange, request, generation, form, headers)
        else:
            await self._whole(exchange, request, generation, form, headers)

    def _request(self, request: Sampled, tokens: list[int], most: int) -> Request:
        return Request(
            prompt=tokens,
            max_tokens=most,
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            top_k=max(0, request.top_k or 0),
            seed=request.seed,
            end_ids=frozenset() if request.ignore_eos else self._tokenizer.end_ids,
            salt=request.cache_salt,
            transfer=request.kv_transfer_params,
        )

    async def _whole(
        self,
        exchange: Exchange,
        request: Sampled,
        generation: Generation,
        form: answers.Shape,
        headers: Mapping[str, str],
    ) -> None:
        pieces: list[Piece] = []
        async with aclosing(generation.pieces(exchange)) as coming:
            async for piece in coming:
                pieces.append(piece)
        extra = {}
        if request.return_token_ids:
            extra["token_ids"] = [token for piece in pieces for token in piece.tokens]
        finish = pieces[-1].finish
        assert finish is not None
        record = form.answer(
            "".join(piece.text for piece in pieces), finish, _usage(generation), extra
        )
        await exchange.answer(200, record, headers)

    async def _stream(
        self,
        exchange: Exchange,
        request: Sampled,
        generation: Generation,
        form: answers.Shape,
        headers: Mapping[str, str],
    ) -> None:
        try:
            async with aclosing(generation.pieces(exchange)) as coming:
                async for piece in coming:
                    if not exchange.started:  # until now an error could still have its status
                        await exchange.start_events(headers)
                        if (opening := form.opening()) is not None:
                            await exchange.send_events(answers.event(opening))
                    if piece.text or piece.finish or request.return_token_ids:
                        extra = {"token_ids": piece.tokens} if request.return_token_ids else None
                        part = form.part(piece.text, piece.finish, extra)
                        await exchange.send_events(answers.event(part))
        except OSError:  # the connection broke while we wrote
            raise Gone from None
        end = answers.DONE
        if request.usage_at_the_end:
            end = answers.event(form.closing(_usage(generation))) + end
        await exchange.send_events(end, last=True)

    async def _refuse(
        self,
        exchange: Exchange,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        wait_s: float = 1.0,
    ) -> None:
        kinds = {401: "authentication_error", 503: "overloaded_error"}
        kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
        record = answers.error_record(message, kind, param, code)
        if exchange.started:  # the status is long sent: an event says it
            await exchange.send_events(answers.event(record), last=True)
            return
        headers = {"retry-after": str(math.ceil(wait_s))} if status == 503 else {}
        await exchange.answer(status, record, headers)

    def _check_key(self, exchange: Exchange) -> None:
        key = self._served.api_key
        if not key or exchange.path in _OPEN:
            return
        given = exchange.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), key.encode()):
            raise BadRequest("wrong or missing API key", code="invalid_api_key", status=401)

    def _check_model(self, request: Sampled) -> None:
        if request.model is not None and request.model != self._served.name:
            raise BadRequest(
                f"the model '{request.model}' is not served here; '{self._served.name}' is",
                "model",
                "model_not_found",
                status=404,
            )

    def _check_length(self, prompt_tokens: int, most: int) -> None:
        context = self._engine.context_tokens
        if not prompt_tokens:
            raise BadRequest("the prompt is empty", "prompt")
        if prompt_tokens + most > context:
            raise BadRequest(
                f"this model's context is {context} tokens; the prompt has {prompt_tokens} and "
                f"{most} were asked for: shorten the prompt or lower max_tokens",
                "prompt" if prompt_tokens >= context else "max_tokens",
                "context_length_exceeded",
            )


async def _aside(characters: int, encode: Callable[[], list[int]]) -> list[int]:
    """Long texts are tokenized in a thread: meanwhile other answers go on."""
    return await asyncio.to_thread(encode) if characters > ASIDE_CHARACTERS else encode()


def _usage(generation: Generation) -> answers.Record:
    return answers.usage_record(
        generation.prompt_tokens, generation.completion_tokens, generation.reuse
    )
