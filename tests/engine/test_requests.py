"""What clients send is checked field by field before an engine sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moonpool.engine.server.requests import (
    BadRequest,
    ChatRequest,
    CompletionRequest,
    Message,
    Sampled,
    read_request,
)

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def read(kind: type[Sampled] = CompletionRequest, **fields: Any) -> Any:
    least = {"prompt": "x"} if kind is CompletionRequest else CHAT
    return read_request(json.dumps(least | fields).encode(), kind)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        (
            {"temprature": 0},
            "temprature",
            "unknown option 'temprature'. Did you mean 'temperature'?",
        ),
        ({"mirostat": 2}, "mirostat", "unknown option 'mirostat'."),
        ({"temperature": 2.1}, "temperature", "Expected `float` <= 2.0"),
        ({"temperature": "hot"}, "temperature", "Expected `float | null`, got `str`"),
        ({"top_p": 0}, "top_p", "Expected `float` > 0.0"),
        ({"top_k": -2}, "top_k", "Expected `int` >= -1"),
        ({"max_tokens": 0}, "max_tokens", "Expected `int` >= 1"),
        ({"seed": 1.5}, "seed", "Expected `int | null`, got `float`"),
        ({"n": 2}, "n", "n is not done by this server; only 1"),
        ({"logprobs": 5}, "logprobs", "only false or 0"),
        ({"best_of": 3}, "best_of", "only 1"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "only {}"),
        (
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            "tools",
            "tools is not done by this server; only []: what a model writes to call a tool",
        ),
        ({"presence_penalty": 0.5}, "presence_penalty", "only 0"),
        ({"stop": ["a"] * 17}, "stop", "17 stop strings; at most 16"),
        ({"stop": ""}, "stop", "1 to 256 characters"),
        ({"stop": ["x" * 257]}, "stop", "1 to 256 characters"),
        ({"stop": 5}, "stop", "Expected `str | array | null`, got `int`"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "only for stream = true"),
        ({"stream": True, "stream_options": {"x": 1}}, "x", "unknown option 'x'."),
        ({"prompt": {"a": 1}}, "prompt", "Expected `str | array`"),
    ],
)
def test_a_bad_field_is_named(fields: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(**fields)
    assert caught.value.param == param
    assert said in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b"{}", b'"x"'])
def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        read_request(body, CompletionRequest)


def test_options_that_ask_for_nothing_are_taken() -> None:
    request = read(
        n=1, logit_bias={}, logprobs=None, presence_penalty=0, user="me", metadata={"a": "b"}
    )
    assert request == read()


def test_not_given_and_null_are_the_same() -> None:
    assert read(temperature=None, stop=None, stream=None) == read()


def test_a_stop_string_alone_is_a_list() -> None:
    assert read(stop="end").stops == ["end"]
    assert read(stop=["a", "b"]).stops == ["a", "b"]
    assert read().stops == []


@pytest.mark.parametrize(
    ("prompt", "one"), [("a", "a"), (["a"], "a"), ([1, 2], [1, 2]), ([[1, 2]], [1, 2]), ([], [])]
)
def test_one_prompt_may_be_written_in_four_ways(prompt: Any, one: Any) -> None:
    assert read(prompt=prompt).one_prompt() == one


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]], [1, "a"], [1.5], [True]])
def test_several_prompts_and_no_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        read(prompt=prompt).one_prompt()
    assert caught.value.param == "prompt"


def seen(message: dict[str, Any]) -> dict[str, str]:
    request: ChatRequest = read(ChatRequest, messages=[message])
    return Message.as_template_sees_it(request.messages[0], 0)


def test_content_may_come_in_parts_of_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert seen({"role": "user", "content": parts}) == {"role": "user", "content": "ab"}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": None},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "user", "content": [{"type": "text"}]},
    ],
)
def test_content_that_is_no_text_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as caught:
        seen(message)
    assert caught.value.param == "messages[0].content"


def test_a_chat_needs_messages_with_roles() -> None:
    with pytest.raises(BadRequest, match="length >= 1"):
        read(ChatRequest, messages=[])
    with pytest.raises(BadRequest) as caught:
        read(ChatRequest, messages=[{"content": "x"}])
    assert caught.value.param == "messages[0].role"
