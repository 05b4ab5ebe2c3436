"""The server as OpenAI's own client sees it, on a real engine with a tiny model."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from moonpool.core.engine_section import EngineConfig
from moonpool.engine import Engine
from moonpool.engine.tokenizer import Tokenizer
from tests.engine.serving import Running, serving

CHAT: list[Any] = [{"role": "user", "content": "hi"}]
LONG = "All work and no play makes Jack a dull boy. " * 8


@pytest.fixture(scope="module")
def running(tiny: Path, tokenizer: Tokenizer) -> Iterator[Running]:
    with (
        Engine.load(tiny, EngineConfig(kv_memory=8 << 20)) as engine,
        serving(engine, tokenizer) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="-", max_retries=0) as client:
        yield client


def complete(client: openai.OpenAI, prompt: Any, **options: Any) -> Any:
    extra = {"return_token_ids": True, **options.pop("extra", {})}
    given = {"temperature": 0, "max_tokens": 8, **options}
    return client.completions.create(model="tiny", prompt=prompt, extra_body=extra, **given)


def fetch(running: Running, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(running.url.removeprefix("http://"))
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_completion_and_its_usage(client: openai.OpenAI) -> None:
    answer = complete(client, "hello", extra={"cache_salt": "usage"})
    assert answer.object == "text_completion" and answer.model == "tiny"
    assert answer.choices[0].finish_reason == "length"
    assert len(answer.choices[0].token_ids) == 8
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 8, 13)
    assert usage.prompt_tokens_details.cached_tokens == 0


def test_a_prompt_of_token_ids_is_the_same_prompt(
    client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    as_text, as_ids = complete(client, "hello"), complete(client, tokenizer.encode("hello"))
    assert as_text.choices[0].token_ids == as_ids.choices[0].token_ids


def test_a_chat(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=CHAT, max_completion_tokens=4, temperature=0
    )
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(tokenizer.encode_chat(CHAT))
    assert answer.usage.completion_tokens == 4


def test_a_stream_is_the_whole_answer_in_pieces(client: openai.OpenAI) -> None:
    whole = complete(client, "stream", max_tokens=24)
    pieces = list(complete(client, "stream", max_tokens=24, stream=True))
    assert "".join(p.choices[0].text for p in pieces) == whole.choices[0].text
    assert sum((p.choices[0].token_ids for p in pieces), []) == whole.choices[0].token_ids
    assert [p.choices[0].finish_reason for p in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert len({p.id for p in pieces}) == 1


def test_a_streamed_chat_begins_with_its_role_and_ends_with_usage(client: openai.OpenAI) -> None:
    pieces = list(
        client.chat.completions.create(
            model="tiny",
            messages=CHAT,
            max_tokens=4,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert pieces[0].choices[0].delta.role == "assistant"
    assert pieces[-2].choices[0].finish_reason == "length"
    assert pieces[-1].choices == []
    assert pieces[-1].usage is not None and pieces[-1].usage.completion_tokens == 4


def test_a_prompt_seen_before_is_reused_and_says_so(client: openai.OpenAI) -> None:
    first = complete(client, LONG, extra={"cache_salt": "again"})
    again = complete(client, LONG, extra={"cache_salt": "again"})
    other = complete(client, LONG, extra={"cache_salt": "other"})
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert again.usage.prompt_tokens_details.cached_tokens >= 256
    assert again.usage.prompt_tokens_details.moonpool["local_tokens"] >= 256
    assert other.usage.prompt_tokens_details.cached_tokens == 0
    answers = [answer.choices[0].token_ids for answer in (first, again, other)]
    assert answers[0] == answers[1] == answers[2]


def test_a_seed_gives_the_same_answer_again(client: openai.OpenAI) -> None:
    def drawn(seed: int) -> list[int]:
        answer = complete(client, "dice", temperature=1.5, seed=seed, max_tokens=16)
        found: list[int] = answer.choices[0].token_ids
        return found

    assert drawn(1) == drawn(1) != drawn(2)


def test_a_stop_string_ends_the_answer_before_it(client: openai.OpenAI, running: Running) -> None:
    text = complete(client, "stop", max_tokens=48).choices[0].text
    stop = text[5:8]
    for stream in (False, True):
        answer = complete(client, "stop", max_tokens=400, stop=["never", stop], stream=stream)
        pieces = [p.choices[0] for p in answer] if stream else [answer.choices[0]]
        assert "".join(piece.text for piece in pieces) == text[: text.index(stop)]
        assert pieces[-1].finish_reason == "stop"
    running.until("running", 0)


def test_an_end_token_ends_the_answer_unless_it_is_ignored(
    client: openai.OpenAI, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = complete(client, "end", max_tokens=12).choices[0].token_ids
    monkeypatch.setattr(tokenizer, "end_ids", frozenset([ids[4]]))
    ended = complete(client, "end", max_tokens=12)
    assert ended.choices[0].finish_reason == "stop"
    assert ended.choices[0].token_ids == ids[: ids.index(ids[4]) + 1]
    ignored = complete(client, "end", max_tokens=12, extra={"ignore_eos": True})
    assert ignored.choices[0].token_ids == ids


def test_a_client_that_leaves_frees_its_pages(client: openai.OpenAI, running: Running) -> None:
    before = running.engine.figures()["aborted"]
    stream = complete(client, "leave", max_tokens=1900, stream=True)
    next(iter(stream))
    stream.close()
    running.until("aborted", before + 1)
    running.until("running", 0)
    connection = http.client.HTTPConnection(running.url.removeprefix("http://"))
    body = {"prompt": "leave", "max_tokens": 1900, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    running.until("running", 1)
    connection.close()
    running.until("aborted", before + 2)
    running.until("running", 0)


@pytest.mark.parametrize(
    ("status", "code", "param", "options"),
    [
        (404, "model_not_found", "model", {"model": "gpt-5"}),
        (400, "unknown_parameter", "mirostat", {"extra_body": {"mirostat": 1}}),
        (400, "unsupported_value", "n", {"n": 2}),
        (400, None, "temperature", {"temperature": -1}),
        (400, None, "prompt", {"prompt": ""}),
        (400, None, None, {"prompt": [5, 100_000]}),
        (400, "context_length_exceeded", "prompt", {"prompt": "x" * 2048}),
        (400, "context_length_exceeded", "prompt", {"prompt": "x" * 100_000}),
        (400, "context_length_exceeded", "max_tokens", {"prompt": "x" * 2000, "max_tokens": 100}),
    ],
)
def test_what_cannot_be_done_is_refused_in_openais_shape(
    client: openai.OpenAI, status: int, code: str | None, param: str | None, options: Any
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(**{"model": "tiny", "prompt": "x", **options})
    assert caught.value.status_code == status
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["code"] == code and caught.value.body["param"] == param
    assert caught.value.body["message"]


def test_a_template_that_refuses_is_the_requests_error(
    client: openai.OpenAI, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "chat", None)
    with pytest.raises(openai.BadRequestError, match="no chat template; use /v1/completions"):
        client.chat.completions.create(model="tiny", messages=CHAT)


def test_models_health_and_paths(client: openai.OpenAI, running: Running) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert json.loads(fetch(running, "GET", "/health")[1]) == {"status": "ok", "model": "tiny"}
    assert fetch(running, "GET", "/v1/completions")[0] == 405
    status, text = fetch(running, "GET", "/v2")
    assert status == 404 and "/v1/chat/completions" in text
    assert fetch(running, "POST", "/v1/completions", "{")[0] == 400


def test_metrics_count_what_happened(client: openai.OpenAI, running: Running) -> None:
    def figures() -> dict[str, float]:
        page = fetch(running, "GET", "/metrics")[1]
        lines = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    before = figures()
    complete(client, LONG, extra={"cache_salt": "metrics"})
    complete(client, LONG, extra={"cache_salt": "metrics"})
    after = figures()
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    assert grown['moonpool_engine_requests_total{outcome="length"}'] == 2
    assert grown["moonpool_engine_generation_tokens_total"] == 16
    sources = ("computed", "local", "pool", "peer")
    by_source = [grown[f'moonpool_engine_prompt_tokens_total{{source="{s}"}}'] for s in sources]
    assert sum(by_source) == 2 * len(LONG) and by_source[1] >= 256
    assert grown["moonpool_engine_time_to_first_token_seconds_count"] == 2
    assert grown['moonpool_engine_time_to_first_token_seconds_bucket{le="+Inf"}'] == 2
    assert after["moonpool_engine_running"] == 0


def test_a_key_is_asked_for_everywhere_but_at_health(
    running: Running, tokenizer: Tokenizer
) -> None:
    with serving(running.engine, tokenizer, api_key="secret") as locked:
        assert fetch(locked, "GET", "/health")[0] == 200
        assert fetch(locked, "GET", "/metrics")[0] == 401
        for key, allowed in (("secret", True), ("wrong", False)):
            with openai.OpenAI(base_url=f"{locked.url}/v1", api_key=key, max_retries=0) as client:
                if allowed:
                    complete(client, "x")
                else:
                    with pytest.raises(openai.AuthenticationError):
                        complete(client, "x")


def test_out_of_pages_is_a_503_that_says_when_to_come_again(
    tiny: Path, tokenizer: Tokenizer
) -> None:
    config = EngineConfig(kv_memory=2 << 20, running_max=1, queue_max=1, queue_ms=300)
    with (
        Engine.load(tiny, config) as engine,
        serving(engine, tokenizer) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client,
    ):
        first = complete(client, "a", max_tokens=2000, stream=True)
        next(iter(first))
        for stream in (False, True):  # waits for its turn, which does not come in time
            with pytest.raises(openai.InternalServerError) as caught:
                complete(client, "b", stream=stream)
            assert caught.value.status_code == 503
            assert int(caught.value.response.headers["retry-after"]) >= 1
            assert "engine.queue_ms" in caught.value.message
        first.close()
        server.until("running", 0)
        assert complete(client, "b").usage.completion_tokens == 8


def test_a_stopped_engine_answers_500_and_is_not_healthy(tiny: Path, tokenizer: Tokenizer) -> None:
    with (
        Engine.load(tiny, EngineConfig(kv_memory=2 << 20)) as engine,
        serving(engine, tokenizer) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client,
    ):
        stream = complete(client, "a", max_tokens=1900, stream=True)
        next(iter(stream))
        engine.close()
        with pytest.raises(openai.APIError, match="the engine stopped"):
            list(stream)
        with pytest.raises(openai.InternalServerError, match="the engine stopped"):
            complete(client, "b")
        assert fetch(server, "GET", "/health")[0] == 503
