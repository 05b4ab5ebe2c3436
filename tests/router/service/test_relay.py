"""The proxy in front of real HTTP servers."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.router.rig import (
    STREAM_HEAD,
    Got,
    TinyWorker,
    ask,
    chunk,
    completion,
    connected,
    event,
    get,
    post,
    read_message,
    routed,
    send_json,
    until,
)

PROMPT = list(range(1, 65))


async def test_an_answer_comes_through_whole() -> None:
    worker = TinyWorker("a")
    async with routed(worker) as router:
        got = await ask(router, completion(PROMPT, max_tokens=3))
    assert got.status == 200 and got.whole
    assert got.json["by"] == "a"
    assert worker.asked[0].json == {"prompt": PROMPT, "stream": False, "max_tokens": 3}


async def test_a_stream_comes_through_in_events() -> None:
    async with routed(TinyWorker("a")) as router:
        got = await ask(router, completion(PROMPT, stream=True))
    assert got.headers["transfer-encoding"] == "chunked"
    assert [e["choices"][0]["text"] for e in got.events[:4]] == ["a0", "a1", "a2", "a3"]
    assert got.events[-1] == "[DONE]"


async def test_chunks_reach_the_client_before_the_answer_is_over() -> None:
    go_on = asyncio.Event()

    async def slow(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(event(1)))
        await writer.drain()
        await go_on.wait()
        writer.write(chunk(event(2)) + b"0\r\n\r\n")

    async with (
        routed(TinyWorker("a", slow)) as router,
        connected(router) as (reader, writer),
    ):
        writer.write(completion(PROMPT, stream=True))
        first = await reader.readuntil(b"data: 1\n\n")
        assert b"200 OK" in first
        go_on.set()
        assert b"data: 2" in await reader.readuntil(b"0\r\n\r\n")


async def test_a_booking_follows_its_stream() -> None:
    """The first byte ends the prefill, events are counted as tokens, the end frees it all."""
    go_on = asyncio.Event()

    async def slow(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for number in range(40):
            writer.write(chunk(event(number)))
        await writer.drain()
        await go_on.wait()
        writer.write(b"0\r\n\r\n")

    async with routed(TinyWorker("a", slow)) as router, connected(router) as (reader, writer):
        load = router.desk.brain.load
        writer.write(completion(PROMPT, stream=True))
        await reader.readuntil(b"data: 39\n\n")
        assert load.prefill_tokens.sum() == 0 and load.requests.sum() == 1
        assert load.decode_blocks.sum() == 4 + 2, "blocks of 16: the prompt's, and the answer's"
        go_on.set()
        await reader.readuntil(b"\r\n0\r\n\r\n")
        await until(lambda: load.requests.sum() == 0 == load.decode_blocks.sum())


async def test_connections_are_kept_on_both_sides() -> None:
    worker = TinyWorker("a")
    async with routed(worker) as router, connected(router) as (reader, writer):
        for _ in range(5):
            writer.write(completion(PROMPT, stream=True))
            assert (await read_message(reader)).whole
        used = {got.connection for got in worker.asked}
    assert len(worker.asked) == 5 and len(used) == 1


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    worker = TinyWorker("a")
    async with routed(worker) as router, connected(router) as (reader, writer):
        writer.write(b"".join(completion([n] * 20, n=n) for n in range(1, 6)))
        for _ in range(5):
            assert (await read_message(reader)).status == 200
    assert [got.json["n"] for got in worker.asked] == [1, 2, 3, 4, 5]


async def test_hop_by_hop_headers_stay_on_their_hop() -> None:
    async def reply(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        extra = b"Connection: X-Secret\r\nX-Secret: 1\r\nKeep-Alive: 9\r\nX-Kept: yes\r\n"
        send_json(writer, 200, {}, extra)

    worker = TinyWorker("a", reply)
    extra = (
        "Connection: keep-alive, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\n"
        "Proxy-Authorization: p\r\nX-Other: 2\r\nAuthorization: Bearer me\r\n"
    )
    async with routed(worker) as router:
        got = await ask(router, post("/v1/completions", {"prompt": [1]}, extra))
    seen = worker.asked[0].headers
    assert seen["x-other"] == "2" and seen["authorization"] == "Bearer me"
    assert seen["host"] == worker.id
    assert not {"x-mine", "keep-alive", "te", "proxy-authorization"} & set(seen)
    assert got.headers["x-kept"] == "yes"
    assert not {"x-secret", "keep-alive", "connection"} & set(got.headers)


async def test_a_request_id_is_kept_or_made() -> None:
    worker = TinyWorker("a")
    async with routed(worker) as router:
        await ask(router, post("/v1/completions", {"prompt": [1]}, "X-Request-Id: mine\r\n"))
        await ask(router, completion([1]))
    assert worker.asked[0].headers["x-request-id"] == "mine"
    assert worker.asked[1].headers["x-request-id"]


async def test_a_chunked_request_reaches_the_worker_with_a_length() -> None:
    worker = TinyWorker("a")
    body = json.dumps({"prompt": PROMPT}).encode()
    pieces = b"".join(chunk(body[i : i + 7]) for i in range(0, len(body), 7)) + b"0\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with routed(worker) as router:
        assert (await ask(router, head + pieces)).status == 200
    seen = worker.asked[0]
    assert seen.body == body and "transfer-encoding" not in seen.headers


async def test_expect_continue_is_answered() -> None:
    body = json.dumps({"prompt": PROMPT}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: r\r\nExpect: 100-continue\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    worker = TinyWorker("a")
    async with routed(worker) as router, connected(router) as (reader, writer):
        writer.write(head)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await read_message(reader)).status == 200
    assert "expect" not in worker.asked[0].headers


async def test_a_client_that_hangs_up_ends_the_work() -> None:
    async def endless(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        while True:
            writer.write(chunk(event(0)))
            await writer.drain()
            await asyncio.sleep(0.005)

    worker = TinyWorker("a", endless)
    async with routed(worker) as router:
        async with connected(router) as (reader, writer):
            writer.write(completion(PROMPT, stream=True))
            await reader.readuntil(b"data: 0")
        await asyncio.wait_for(worker.aborted.wait(), 10)
        await until(lambda: not router.relay.running)
        assert router.desk.counters.requests[worker.id, "client_gone"] == 1
        assert router.desk.brain.load.requests.sum() == 0


async def test_a_client_that_hangs_up_before_the_first_byte_ends_the_work() -> None:
    async def silent(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    worker = TinyWorker("a", silent)
    async with routed(worker) as router:
        async with connected(router) as (_, writer):
            writer.write(completion(PROMPT))
            await until(lambda: bool(worker.asked))
        await asyncio.wait_for(worker.aborted.wait(), 10)


async def test_a_slow_client_slows_the_worker() -> None:
    """What is on the way stays bounded, however much the worker has to say."""
    sent = 0
    block = b"x" * 65536

    async def flood(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(STREAM_HEAD)
        for _ in range(1024):
            writer.write(chunk(block))
            await writer.drain()
            sent += len(block)
        writer.write(b"0\r\n\r\n")

    async with routed(TinyWorker("a", flood)) as router, connected(router) as (reader, writer):
        writer.write(completion(PROMPT, stream=True))
        await reader.readuntil(b"\r\n\r\n")
        before = -1
        while before != sent:  # until nothing moves any more
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 32 << 20, "nobody held the worker back"
        left = 1024 * 65536
        while left > 0:
            size = int((await reader.readuntil(b"\r\n")).strip(), 16)
            await reader.readexactly(size + 2)
            left -= size
        assert await reader.readexactly(5) == b"0\r\n\r\n"


async def test_an_answer_that_ends_with_its_connection_is_passed_on_in_chunks() -> None:
    async def old(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nall of it")
        await writer.drain()
        writer.close()

    async with routed(TinyWorker("a", old)) as router:
        got = await ask(router, completion(PROMPT))
    assert got.body == b"all of it" and got.whole
    assert got.headers["transfer-encoding"] == "chunked"


async def test_a_client_of_http_1_0_gets_no_chunks() -> None:
    async with routed(TinyWorker("a")) as router:
        body = json.dumps({"prompt": PROMPT, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n"
        got = await ask(router, head.encode() + body)
    assert "transfer-encoding" not in got.headers and got.events[-1] == "[DONE]"


async def test_head_and_empty_answers() -> None:
    async def nothing(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        if got.first.startswith("HEAD"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 77\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with routed(TinyWorker("a", nothing)) as router:
        got = await ask(router, b"HEAD /v1/x HTTP/1.1\r\nHost: r\r\n\r\n", head_only=True)
        assert got.status == 200 and got.headers["content-length"] == "77"
        got = await ask(router, b"DELETE /v1/x HTTP/1.1\r\nHost: r\r\n\r\n")
        assert got.status == 204 and "content-length" not in got.headers


async def test_interim_answers_are_not_taken_for_the_answer() -> None:
    async def early(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        send_json(writer, 200, {"real": True})

    async with routed(TinyWorker("a", early)) as router:
        assert (await ask(router, completion(PROMPT))).json == {"real": True}


async def test_an_error_of_the_worker_is_the_clients() -> None:
    async def refuse(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        send_json(writer, 422, {"error": {"message": "no"}})

    async with routed(TinyWorker("a", refuse), TinyWorker("b", refuse)) as router:
        got = await ask(router, completion(PROMPT))
        assert got.status == 422 and got.json["error"]["message"] == "no"
        assert not router.desk.counters.retries


async def test_actual_hits_are_compared_with_predicted_ones() -> None:
    async with routed(TinyWorker("a", cached_tokens=48)) as router:
        await ask(router, completion(PROMPT, stream=True))
        await ask(router, completion(PROMPT))
        counters = router.desk.counters
        assert (counters.hits_checked, counters.hits_actual_tokens) == (2, 96)
        assert counters.hits_predicted_tokens == 48  # the second time: all but the last block
        page = (await get(router, "/metrics")).body.decode()
        assert "moonpool_router_hit_tokens_predicted_total 48" in page
        assert "moonpool_router_decision_seconds_count 2" in page
        assert "moonpool_router_index_blocks 4" in page


async def test_the_pace_of_streams_tells_what_a_block_adds_to_a_step() -> None:
    """And what is learnt of a worker is shown for it."""
    go_on = asyncio.Event()

    async def paced(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        while not go_on.is_set():
            writer.write(chunk(event(1)) * 16)
            await writer.drain()
            await asyncio.sleep(0.005)
        writer.write(b"0\r\n\r\n")

    worker = TinyWorker("a", paced)
    async with (
        routed(worker, cost="seconds") as router,
        connected(router) as (reader, writer),
    ):
        brain = router.desk.brain
        place = brain.fleet.members[worker.id].places[0]
        configured = brain.learner.decode_block_s[place]
        writer.write(completion(PROMPT, stream=True))
        await until(lambda: bool(brain.learner.decode_block_s[place] != configured))
        go_on.set()
        assert (await read_message(reader)).whole
        learnt = float(brain.learner.decode_block_s[place])
        page = (await get(router, "/workers")).json["workers"][0]
        assert page["decode_block_s"] == pytest.approx(learnt)
        assert page["prefill_s"] == pytest.approx(brain.learner.prefill_s[place])
        told = (await get(router, "/metrics")).body.decode()
        assert f'moonpool_router_worker_decode_block_seconds{{worker="{worker.id}"}} ' in told
