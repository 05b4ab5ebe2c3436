"""Clients that send what is malformed, ambiguous, too much or too slow."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from typing import Any

import pytest

from moonpool.router.service.asks import BytesReader
from tests.router.rig import (
    Got,
    TinyWorker,
    ask,
    completion,
    connected,
    get,
    post,
    read_message,
    routed,
    until,
)

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\n"
BODY = b'{"prompt":[1,2,3]}'
INNER = b"GET /v1/secret HTTP/1.1\r\nHost: r\r\n\r\n"

AMBIGUOUS = {
    "length and chunks": HEAD
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + INNER,
    "two lengths": HEAD + b"Content-Length: 18\r\nContent-Length: 60\r\n\r\n" + BODY + INNER,
    "the same length twice": HEAD + b"Content-Length: 18\r\nContent-Length: 18\r\n\r\n" + BODY,
    "a list of lengths": HEAD + b"Content-Length: 18, 18\r\n\r\n" + BODY,
    "a signed length": HEAD + b"Content-Length: +18\r\n\r\n" + BODY,
    "a hexadecimal length": HEAD + b"Content-Length: 0x12\r\n\r\n" + BODY,
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\n" + BODY,
    "space before the colon": HEAD + b"Content-Length : 18\r\n\r\n" + BODY,
    "a folded header": HEAD + b"X: a\r\n b\r\nContent-Length: 18\r\n\r\n" + BODY,
    "bare line feeds": HEAD.replace(b"\r\n", b"\n") + b"Content-Length: 18\n\n" + BODY,
    "a bare carriage return": HEAD + b"X: a\rY: b\r\nContent-Length: 18\r\n\r\n" + BODY,
    "a nul in a header": HEAD + b"X: a\x00b\r\nContent-Length: 18\r\n\r\n" + BODY,
    "unknown coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "gzip and chunked": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": HEAD
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked in 1.0": b"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n"
    + b"\r\n0\r\n\r\n",
    "a chunk too long": HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    "a huge chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\na\r\n",
    "a chunk size with junk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n3 x\r\nabc\r\n0\r\n\r\n",
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "HTTP 0.9": b"GET /\r\n\r\n",
    "HTTP 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "an absolute target": b"GET http://elsewhere/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "a tunnel": b"CONNECT elsewhere:443 HTTP/1.1\r\nHost: a\r\n\r\n",
    "an unknown method": b"BREW /v1/models HTTP/1.1\r\nHost: a\r\n\r\n",
    "control bytes in the target": b"GET /v1/\x01models HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("message", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_what_two_parsers_could_read_differently_is_refused(message: bytes) -> None:
    worker = TinyWorker("a")
    async with routed(worker) as router, connected(router) as (reader, writer):
        writer.write(message)
        got = await asyncio.wait_for(read_message(reader), 10)
        assert 400 <= got.status <= 505 and got.status != 404
        assert got.headers["connection"] == "close"
        assert await asyncio.wait_for(reader.read(), 10) == b"", "one refusal, then the end"
    assert worker.asked == []


async def test_a_pipelined_rest_is_never_part_of_another_request() -> None:
    worker = TinyWorker("a")
    async with routed(worker) as router, connected(router) as (reader, writer):
        writer.write(HEAD + b"Content-Length: 18\r\n\r\n" + BODY + b"GARBAGE\r\n\r\n")
        assert (await read_message(reader)).status == 200
        assert (await read_message(reader)).status == 400
    assert [got.body for got in worker.asked] == [BODY]


async def test_trailers_are_dropped() -> None:
    worker = TinyWorker("a")
    message = HEAD + b"Transfer-Encoding: chunked\r\n\r\n12\r\n" + BODY
    message += b"\r\n0\r\nX-Admin: yes\r\n\r\n"
    async with routed(worker) as router:
        assert (await ask(router, message)).status == 200
    assert "x-admin" not in worker.asked[0].headers
    assert worker.asked[0].headers["content-length"] == "18"


async def test_a_wish_for_another_protocol_is_ignored() -> None:
    worker = TinyWorker("a")
    message = HEAD + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"
    async with routed(worker) as router:
        got = await ask(router, message + b"Content-Length: 18\r\n\r\n" + BODY)
    assert got.status == 200
    assert not {"upgrade", "http2-settings"} & set(worker.asked[0].headers)


@pytest.mark.parametrize(
    "path",
    ["/reset_prefix_cache", "/v1/../reset_prefix_cache", "/v1//x", "/v1/%2e%2e/x", "/", "/docs"],
)
async def test_paths_that_are_not_public_stay_private(path: str) -> None:
    worker = TinyWorker("a")
    async with routed(worker) as router:
        assert (await ask(router, post(path, {}))).status == 404
    assert worker.asked == []


async def test_too_much_of_a_head() -> None:
    async with routed(TinyWorker("a"), head_bytes_max=2048) as router:
        one = HEAD + b"X: " + b"y" * 4096 + b"\r\n\r\n"
        many = HEAD + b"".join(b"X-%d: y\r\n" % n for n in range(200)) + b"\r\n"
        endless = HEAD + b"X: " + b"y" * 100_000
        for message in (one, many, endless):
            assert (await ask(router, message)).status == 431


async def test_too_much_of_a_body() -> None:
    worker = TinyWorker("a")
    async with routed(worker, body_bytes_max=1024) as router:
        told = HEAD + b"Content-Length: 1000000\r\n\r\n"
        assert (await ask(router, told)).status == 413
        pieces = b"".join(b"200\r\n%b\r\n" % (b" " * 512) for _ in range(4))
        untold = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + pieces
        assert (await ask(router, untold)).status == 413
    assert worker.asked == []


async def test_bodies_under_way_are_bounded_together() -> None:
    async def wait(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    worker = TinyWorker("a", wait)
    async with routed(worker, running_bytes_max=10_000) as router, connected(router) as (_, w):
        w.write(completion([7] * 2500))
        await until(lambda: len(worker.asked) == 1)
        assert (await ask(router, completion([7] * 2500))).status == 503


async def test_texts_that_wait_for_the_tokenizer_are_bounded() -> None:
    """They count as running, with their bytes, before a worker is chosen."""
    go_on = threading.Event()

    class Slow(BytesReader):
        def encode(self, text: str) -> list[int]:
            go_on.wait(20)
            return super().encode(text)

    message = completion("x" * 5000)
    async with routed(TinyWorker("a"), running_max=2, reader=Slow()) as router:
        first = [asyncio.ensure_future(ask(router, message)) for _ in range(2)]
        await until(lambda: router.relay.reading == 2)
        assert router.relay.bytes > 10_000
        assert (await ask(router, message)).status == 503
        go_on.set()
        assert [got.status for got in await asyncio.gather(*first)] == [200, 200]
        assert (router.relay.reading, router.relay.bytes) == (0, 0)


@pytest.mark.parametrize("words", [1, 1000])
async def test_a_conversation_nested_too_deeply(words: int) -> None:
    """Short ones are read on the loop's thread, long ones on another; both are answered."""

    class Deep(BytesReader):
        def encode_chat(self, messages: Any) -> list[int]:
            raise RecursionError

    chat = {"messages": [{"role": "user", "content": "words " * words}]}
    async with routed(TinyWorker("a"), reader=Deep()) as router:
        assert (await ask(router, post("/v1/chat/completions", chat))).status == 400


async def test_slow_requests_are_given_up() -> None:
    async with routed(TinyWorker("a"), client_ms=300) as router:
        async with connected(router) as (reader, writer):
            writer.write(b"POST /v1/comp")
            assert (await read_message(reader)).status == 408
        async with connected(router) as (reader, writer):
            writer.write(HEAD + b"Content-Length: 100\r\n\r\n{")
            assert (await read_message(reader)).status == 408
        async with connected(router) as (reader, _):
            assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_clients_are_bounded() -> None:
    async with routed(TinyWorker("a"), clients_max=2) as router:
        async with connected(router), connected(router):
            await until(lambda: len(router.http.connections) == 2)
            got = await get(router, "/health")
            assert got.status == 503 and got.headers["retry-after"] == "1"


BAD_BODIES = {
    "no JSON": b"prompt=1",
    "not UTF-8": b'{"prompt":"\xff"}',
    "a list": b"[1]",
    "no prompt": b"{}",
    "an empty prompt": b'{"prompt":""}',
    "no tokens": b'{"prompt":[]}',
    "an empty first prompt": b'{"prompt":[[],[1]]}',
    "negative tokens": b'{"prompt":[-1]}',
    "huge tokens": b'{"prompt":[99999999999]}',
    "float tokens": b'{"prompt":[1.5]}',
    "mixed tokens": b'{"prompt":[1,"a"]}',
    "a number": b'{"prompt":5}',
    "deep": b'{"prompt":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "stream as text": b'{"prompt":[1],"stream":"yes please"}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
async def test_bodies_that_make_no_sense(body: bytes) -> None:
    worker = TinyWorker("a")
    async with routed(worker) as router:
        got = await ask(router, post("/v1/completions", body))
        assert got.status == 400
        assert got.json["error"]["type"] == "invalid_request_error"
        assert (await ask(router, completion([1]))).status == 200
    assert len(worker.asked) == 1


async def test_a_request_longer_than_any_worker_takes() -> None:
    worker = TinyWorker("a", context=100)
    async with routed(worker) as router:
        got = await ask(router, completion([1] * 99, max_tokens=2))
        assert got.status == 400 and "100 tokens" in got.json["error"]["message"]
        assert (await ask(router, completion([1] * 98, max_tokens=2))).status == 200


@pytest.mark.parametrize("name", ["priority", "max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [10**400, -(10**400)])
async def test_numbers_that_no_float_holds(name: str, value: int) -> None:
    """What they mean is the worker's to say."""
    worker = TinyWorker("a")
    async with routed(worker, cost="seconds") as router:
        body = b'{"prompt":[1,2,3],"%b":%d}' % (name.encode(), value)
        assert (await ask(router, post("/v1/completions", body))).status == 200
        assert worker.asked[0].body == body


async def test_a_model_nobody_serves() -> None:
    async with routed(TinyWorker("a")) as router:
        got = await ask(router, completion([1], model="gpt-9"))
        assert got.status == 404 and "tiny" in got.json["error"]["message"]
        assert (await ask(router, completion([1], model="tiny"))).status == 200


async def test_a_prompt_of_a_million_tokens() -> None:
    worker = TinyWorker("a")
    tokens = random.Random(1).choices(range(100_000), k=1_000_000)
    async with routed(worker) as router:
        assert (await ask(router, completion(tokens))).status == 200
    assert json.loads(worker.asked[0].body)["prompt"] == tokens


async def test_a_prompt_over_the_limit_of_tokens() -> None:
    async with routed(TinyWorker("a"), prompt_tokens_max=1000) as router:
        assert (await ask(router, completion([1] * 1001))).status == 400


async def test_random_bytes_never_reach_a_worker_nor_end_the_router() -> None:
    random_bytes = random.Random(7)
    worker = TinyWorker("a")
    async with routed(worker) as router:
        for _ in range(60):
            async with connected(router) as (reader, writer):
                writer.write(random_bytes.randbytes(random_bytes.randrange(1, 400)))
                writer.write_eof()
                await asyncio.wait_for(reader.read(), 10)
        assert (await ask(router, completion([1]))).status == 200
    assert len(worker.asked) == 1


async def test_requests_cut_into_single_bytes() -> None:
    worker = TinyWorker("a")
    async with routed(worker) as router, connected(router) as (reader, writer):
        for byte in completion([1, 2, 3]):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert (await read_message(reader)).status == 200


async def test_strangers_are_kept_out() -> None:
    worker = TinyWorker("a")
    async with routed(worker, token="open sesame", worker_token="inner") as router:
        assert (await ask(router, completion([1]))).status == 401
        wrong = post("/v1/completions", {"prompt": [1]}, "Authorization: Bearer open\r\n")
        assert (await ask(router, wrong)).status == 401
        assert (await get(router, "/metrics")).status == 401
        assert (await get(router, "/health")).status == 200
        right = post("/v1/completions", {"prompt": [1]}, "Authorization: Bearer open sesame\r\n")
        assert (await ask(router, right)).status == 200
    assert [got.headers["authorization"] for got in worker.asked] == ["Bearer inner"]
