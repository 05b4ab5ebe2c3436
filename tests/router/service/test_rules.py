"""Small pure parts of the service: health, usage, histograms, headers, requests' prompts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from moonpool.core.errors import BadConfig, BadRequest
from moonpool.core.exposition import Histogram, exposition
from moonpool.router.http.request import Request
from moonpool.router.http.rules import passed_on, retry_after_s
from moonpool.router.http.upstream import parse_origin
from moonpool.router.service.asks import BytesReader, read_ask
from moonpool.router.service.health import Condition, Health
from moonpool.router.service.usage import UsageWatch


def test_one_failure_is_looked_into_and_three_are_believed() -> None:
    health = Health(1.0, 3)
    assert health.well(0.0)
    assert not health.ill(10.0, "slow") and health.look_at == 10.0
    assert not health.ill(10.1, "slow")
    assert health.ill(10.2, "slow") and health.condition is Condition.DOWN
    assert not health.ill(11.0, "slow"), "it was down already"
    assert health.well(12.0) and health.why == ""


def test_a_worker_is_not_asked_to_serve_before_it_is_found_well() -> None:
    assert Health(1.0, 3).condition is Condition.JOINING


def test_a_success_between_failures_begins_anew() -> None:
    health = Health(1.0, 2)
    health.well(0.0)
    health.ill(1.0, "x")
    health.well(2.0)
    assert not health.ill(3.0, "x") and health.condition is Condition.READY


def test_a_refused_connection_is_believed_at_once() -> None:
    health = Health(1.0, 3)
    health.well(0.0)
    assert health.ill(1.0, "refused", surely=True)


def test_what_is_drained_stays_drained() -> None:
    health = Health(1.0, 1)
    health.well(0.0)
    health.drain()
    assert not health.well(1.0) and not health.ill(2.0, "x")
    assert health.condition is Condition.DRAINING


@pytest.mark.parametrize(
    ("pieces", "cached", "events"),
    [
        (
            [b'data: {"a":1}\n\n', b'data: {"usage":{"cached_tokens": 48}}\n\n', b"data: x\n\n"],
            48,
            3,
        ),
        ([b'{"usage":{"prompt_tokens_details":{"cached_tokens":0}}}'], 0, 0),
        ([b'{"text":"\\"cached_tokens\\": 9"}'], None, 0),
        ([b'{"usage":{"cached_tok', b'ens":7}}'], 7, 0),
        ([b'"cached_tokens":5', b"x" * 5000], None, 0),
        ([b"y" * 9000 + b'"cached_tokens":5'], 5, 0),
        ([b'{"cached_tokens":null}'], None, 0),
        ([], None, 0),
    ],
)
def test_cached_tokens_of_an_answer(pieces: list[bytes], cached: int | None, events: int) -> None:
    watch = UsageWatch()
    for piece in pieces:
        watch.see(piece)
    assert (watch.cached_tokens(), watch.events) == (cached, events)


def test_a_histogram_in_the_text_format() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.add(value)
    text = exposition([("x", "histogram", "Help.", histogram.samples())])
    assert 'x_bucket{le="0.1"} 2\n' in text and 'x_bucket{le="1"} 3\n' in text
    assert 'x_bucket{le="+Inf"} 4\n' in text and "x_count 4\n" in text


def test_labels_are_escaped() -> None:
    text = exposition([("x", "gauge", "Help.", [("", {"w": 'a"\\\n'}, 1.0)])])
    assert 'x{w="a\\"\\\\\\n"} 1' in text


def test_named_headers_go_with_the_connection() -> None:
    headers = [(b"connection", b"close, X-A"), (b"x-a", b"1"), (b"x-b", b"2"), (b"te", b"x")]
    assert passed_on(headers) == [(b"x-b", b"2")]


@pytest.mark.parametrize(
    ("value", "seconds"), [(b"7", 7), (b"0", 0), (b"99999", 60), (b"soon", 2), (b"-1", 2), (b"", 2)]
)
def test_when_to_come_again(value: bytes, seconds: float) -> None:
    assert retry_after_s([(b"retry-after", value)], 2) == seconds


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://h:81/p/", ("h", 81, False, b"h:81", b"/p")),
        ("https://h", ("h", 443, True, b"h", b"")),
        ("http://[::1]:5", ("::1", 5, False, b"[::1]:5", b"")),
        ("http://user:secret@h:1", ("h", 1, False, b"h:1", b"")),
    ],
)
def test_where_a_worker_listens(url: str, told: tuple[Any, ...]) -> None:
    assert parse_origin(url) == told


@pytest.mark.parametrize(
    "url", ["h:1", "ftp://h", "http://", "http://h:x", "http://h?q", "http://a..b"]
)
def test_what_is_no_address_of_a_worker(url: str) -> None:
    with pytest.raises(BadConfig):
        parse_origin(url)


class Words:
    """A tokenizer of words, as long as they are."""

    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]

    def encode_chat(self, messages: Any) -> list[int]:
        return [99, *self.encode(messages[-1]["content"])]


def ask(path: str, body: Any, reader: Any = None) -> Any:
    request = Request(b"POST", path.encode(), [(b"x-session-id", b"s1")], json.dumps(body).encode())
    return read_ask(request, reader or Words(), 1000)


def test_prompts_of_every_kind() -> None:
    path = "/v1/completions"
    for prompt, tokens, split in (
        ([1, 2, 3], [1, 2, 3], True),
        ("a bc def", [1, 2, 3], True),
        ([[4, 5]], [4, 5], True),
        ([[4, 5], [6]], [4, 5], False),
        (["a bc", "d"], [1, 2], False),
    ):
        found = ask(path, {"prompt": prompt, "max_tokens": 7, "cache_salt": "x", "stream": True})
        assert found.tokens.tolist() == tokens and found.tokens.dtype == np.uint32
        assert (found.split, found.output_tokens, found.namespace) == (split, 7, "x")
        assert found.stream and found.session == "s1"


def test_a_conversation_is_tokenised_by_its_template() -> None:
    chat = {"messages": [{"role": "user", "content": "a bc"}], "max_completion_tokens": 5}
    found = ask("/v1/chat/completions", chat)
    assert found.tokens.tolist() == [99, 1, 2] and found.output_tokens == 5


def test_other_paths_are_not_looked_into() -> None:
    assert ask("/v1/embeddings", {"input": 3}).tokens.tolist() == []


def test_bytes_stand_in_for_tokens() -> None:
    reader = BytesReader()
    text = "The same beginning, "
    assert reader.encode(text + "one")[:5] == reader.encode(text + "two")[:5]
    assert reader.encode("a") != []
    first = [{"role": "user", "content": "hello there"}]
    longer = [*first, {"role": "assistant", "content": "hi"}]
    short = reader.encode_chat(first)
    assert reader.encode_chat(longer)[: len(short) - 1] == short[:-1]


def test_an_empty_conversation() -> None:
    with pytest.raises(BadRequest):
        ask("/v1/chat/completions", {"messages": []})
