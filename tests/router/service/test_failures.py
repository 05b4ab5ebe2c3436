"""Workers that fail at every stage, and what their clients see."""

from __future__ import annotations

import asyncio

import pytest

from tests.router.rig import (
    STREAM_HEAD,
    Behaviour,
    Got,
    TinyWorker,
    ask,
    chunk,
    completion,
    connected,
    event,
    get,
    post_json,
    read_message,
    routed,
    send_json,
    until,
)

PROMPT = list(range(1, 65))


async def hang_up(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def head_then_hang_up(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD)
    await writer.drain()
    await asyncio.sleep(0.02)
    writer.transport.abort()


async def garbage(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9\r\n\r\n")


async def endless_head(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(10_000):
        writer.write(b"X-%d: %s\r\n" % (number, b"y" * 100))
        await writer.drain()


async def switch(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nxyz")


async def busy(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
    send_json(writer, 503, {"error": "full"}, b"Retry-After: 7\r\n")


async def some_then_hang_up(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD + chunk(event({"choices": [{"text": "begun"}]})))
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.transport.abort()


@pytest.mark.parametrize("bad", [hang_up, head_then_hang_up, garbage, endless_head, switch, busy])
async def test_a_failure_before_the_first_byte_is_answered_by_another(bad: Behaviour) -> None:
    """Whichever worker is asked first: both prompts are answered by the good one."""
    first, good = TinyWorker("first", bad), TinyWorker("good")
    async with routed(first, good) as router:
        for number in range(6):
            got = await ask(router, completion([number] * 64, stream=True))
            assert got.status == 200 and got.whole
            assert got.events[0]["choices"][0]["text"] == "good0"
        assert first.asked, "the bad one was never tried: nothing was shown"
        assert sum(router.desk.counters.retries.values()) >= 1
        assert router.desk.brain.load.requests.sum() == 0


async def test_a_worker_that_dies_in_mid_stream_is_told_in_the_stream() -> None:
    async with routed(TinyWorker("a", some_then_hang_up), TinyWorker("b", some_then_hang_up)) as r:
        got = await ask(r, completion(PROMPT, stream=True))
        assert got.status == 200
        assert not got.whole, "a cut answer must not look like a whole one"
        assert got.events[0]["choices"][0]["text"] == "begun"
        assert got.events[1]["error"]["type"] == "worker_failed"
        assert not r.desk.counters.retries, "nothing is tried again after the first byte"


async def test_a_cut_answer_with_a_length_is_short() -> None:
    async def short(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.transport.abort()

    async with routed(TinyWorker("a", short)) as router:
        got = await ask(router, completion(PROMPT))
    assert got.body == b"only this" and not got.whole


async def test_killing_a_worker_loses_no_request_that_had_not_begun() -> None:
    """Eight wait for their first byte when their worker is killed; all are answered."""

    async def never(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    doomed, good = TinyWorker("doomed", never), TinyWorker("good")
    async with routed(doomed, good) as router:
        asked = [
            asyncio.ensure_future(ask(router, completion([n] * 64, stream=True))) for n in range(16)
        ]
        await until(lambda: len(doomed.asked) >= 4)
        doomed.kill()
        for got in await asyncio.gather(*asked):
            assert got.whole and got.events[0]["choices"][0]["text"] == "good0"
        await until(lambda: not router.desk.seats[doomed.id].ready)


async def test_a_stopped_worker_is_found_and_left() -> None:
    """It accepts and says nothing, as a stopped process does; its probes run out."""

    async def never(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    stopped, good = TinyWorker("stopped", never), TinyWorker("good")
    async with routed(stopped, good, health_timeout_ms=300) as router:
        asked = [
            asyncio.ensure_future(ask(router, completion([n] * 64, stream=True))) for n in range(8)
        ]
        await until(lambda: len(stopped.asked) >= 2)
        stopped.health_status = 0
        for got in await asyncio.gather(*asked):
            assert got.events[0]["choices"][0]["text"] == "good0"
        page = (await get(router, "/workers")).json["workers"]
    assert {w["instance_id"]: w["condition"] for w in page}[stopped.id] == "down"


async def test_a_worker_that_comes_back_serves_again() -> None:
    worker = TinyWorker("a")
    async with routed(worker) as router:
        worker.kill()
        await until(lambda: not router.desk.seats[worker.id].ready)
        got = await ask(router, completion(PROMPT))
        assert got.status == 503 and got.headers["retry-after"] == "1"
        await worker.start()
        await until(lambda: router.desk.seats[worker.id].ready)
        assert (await ask(router, completion(PROMPT))).status == 200


async def test_a_kept_connection_closed_by_the_worker_costs_nobody_anything() -> None:
    """A server may close an idle connection at any moment; that is no failure of it."""

    async def close_after(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        if got.connection == 1 or len(worker.asked) % 2:
            send_json(writer, 200, {})
            await writer.drain()
        else:
            writer.transport.abort()  # a used connection, before any byte of an answer

    worker = TinyWorker("a", close_after)
    async with routed(worker) as router:
        for _ in range(6):
            assert (await ask(router, completion(PROMPT))).status == 200
        assert router.desk.seats[worker.id].ready


async def test_when_all_are_busy_the_client_is_told_when_to_come_again() -> None:
    async with routed(TinyWorker("a", busy), TinyWorker("b", busy)) as router:
        got = await ask(router, completion(PROMPT))
        assert got.status in (429, 503)
        assert int(got.headers["retry-after"]) >= 1


async def test_busy_marks_end_by_themselves() -> None:
    async def once(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        if len(worker.asked) == 1:
            send_json(writer, 429, {}, b"Retry-After: 30\r\n")
        else:
            send_json(writer, 200, {})

    async with routed(TinyWorker("a", once)) as router:
        assert (await ask(router, completion(PROMPT))).status == 429
        assert (await ask(router, completion(PROMPT))).status == 429  # the mark holds
        clock = router.desk.clock
        router.desk.clock = lambda: clock() + 31
        assert (await ask(router, completion(PROMPT))).status == 200


async def test_no_worker_at_all() -> None:
    async with routed(workers="") as router:
        got = await ask(router, completion(PROMPT))
        assert got.status == 503 and "retry-after" in got.headers
        assert (await get(router, "/ready")).status == 503
        assert (await get(router, "/health")).status == 200


async def test_a_worker_that_never_answers_is_given_up() -> None:
    async def never(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    worker = TinyWorker("a", never)
    async with routed(worker, first_byte_ms=200) as router:
        got = await ask(router, completion(PROMPT))
        assert got.status == 504
        await asyncio.wait_for(worker.aborted.wait(), 10)


async def test_a_request_that_took_too_long_is_sent_nowhere_else() -> None:
    """Not even when its time-out is what shows that the worker is down."""

    async def never(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    workers = [TinyWorker("a", never), TinyWorker("b", never)]
    async with routed(*workers, first_byte_ms=200, health_failures=1, health_ms=60_000) as router:
        assert (await ask(router, completion(PROMPT))).status == 504
        assert sum(seat.ready for seat in router.desk.seats.values()) == 1
        assert not router.desk.counters.retries


async def test_a_worker_that_stops_in_mid_stream_is_given_up() -> None:
    async def half(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(event({"choices": []})))
        await writer.drain()
        await asyncio.sleep(60)

    worker = TinyWorker("a", half)
    async with routed(worker, idle_ms=200) as router:
        got = await ask(router, completion(PROMPT, stream=True))
        assert got.status == 200 and not got.whole
        await asyncio.wait_for(worker.aborted.wait(), 10)
        await until(lambda: not router.relay.running)


async def test_what_a_worker_sends_unasked_meets_no_request() -> None:
    """The beginning of a second answer, and its end when the next request comes: for nobody."""
    begun: set[int] = set()

    async def twice(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        if got.connection in begun:
            writer.write(b'ngth: 17\r\n\r\n{"for": "nobody"}')
            return
        begun.add(got.connection)
        send_json(writer, 200, {"for": got.json["n"]})
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Le")

    worker = TinyWorker("a", twice)
    async with routed(worker) as router:
        for number in range(5):
            got = await ask(router, completion(PROMPT, n=number))
            assert got.json == {"for": number}


async def test_a_drained_worker_ends_what_it_does_and_gets_nothing_new() -> None:
    go_on = asyncio.Event()

    async def wait(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(event(1)))
        await go_on.wait()
        writer.write(chunk(event(2)) + b"0\r\n\r\n")

    leaving, staying = TinyWorker("leaving", wait), TinyWorker("staying")
    async with routed(leaving, staying) as router, connected(router) as (reader, writer):
        n = 0
        while not leaving.asked:  # until one of them lands there
            n += 1
            pending = completion([n] * 64, stream=True)
            writer.write(pending)
            await reader.readuntil(b"data: ")
            if not leaving.asked:
                await reader.readuntil(b"\r\n0\r\n\r\n")
        got = await post_json(router, "/drain", {"instance_id": leaving.id})
        assert got.json["running"] == 1
        for n in range(8):
            assert (await ask(router, completion([n] * 64))).json["by"] == "staying"
        go_on.set()
        rest = await reader.readuntil(b"0\r\n\r\n")
        assert b"data: 2" in rest


async def test_a_worker_that_is_unregistered_ends_what_it_has_begun() -> None:
    """Its kept connections close with that; a worker found in a list that it left ends alike."""
    go_on = asyncio.Event()

    async def wait(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(event(1)))
        await go_on.wait()
        writer.write(chunk(event(2)) + b"0\r\n\r\n")

    worker = TinyWorker("a", wait)
    async with routed(worker) as router, connected(router) as (reader, writer):
        writer.write(completion(PROMPT, stream=True))
        await reader.readuntil(b"data: 1\n\n")
        await post_json(router, "/unregister", {"instance_id": worker.id})
        go_on.set()
        rest = await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 10)
        assert b"data: 2" in rest
        await until(lambda: worker.connected == 0)


async def test_the_router_itself_drains() -> None:
    go_on = asyncio.Event()

    async def wait(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(event(1)))
        await go_on.wait()
        writer.write(chunk(event(2)) + b"0\r\n\r\n")

    worker = TinyWorker("a", wait)
    async with routed(worker, drain_ms=5000) as router, connected(router) as (reader, writer):
        writer.write(completion(PROMPT, stream=True))
        await reader.readuntil(b"data: 1\n\n")
        draining = asyncio.ensure_future(router.drain())
        await asyncio.sleep(0.05)
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", router.port)
        go_on.set()
        assert b"data: 2" in await reader.readuntil(b"0\r\n\r\n")
        await draining


async def test_connections_to_a_worker_are_bounded() -> None:
    running = 0
    most = 0

    async def count(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        send_json(writer, 200, {})

    async with routed(TinyWorker("a", count), worker_connections_max=3) as router:
        asked = [ask(router, completion([n] * 64)) for n in range(12)]
        statuses = {got.status for got in await asyncio.gather(*asked)}
    assert most <= 3
    assert statuses <= {200, 429, 502, 503} and 200 in statuses


async def test_running_requests_are_bounded() -> None:
    go_on = asyncio.Event()

    async def wait(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        send_json(writer, 200, {})

    worker = TinyWorker("a", wait)
    async with routed(worker, running_max=2) as router:
        first = [asyncio.ensure_future(ask(router, completion([n]))) for n in range(2)]
        await until(lambda: len(worker.asked) == 2)
        got = await ask(router, completion([9]))
        assert got.status == 503 and got.headers["retry-after"] == "1"
        go_on.set()
        assert [g.status for g in await asyncio.gather(*first)] == [200, 200]


async def test_a_request_behind_an_answer_is_not_lost_when_the_answer_is_whole() -> None:
    async with routed(TinyWorker("a")) as router, connected(router) as (reader, writer):
        writer.write(completion(PROMPT, stream=True) + completion([1], stream=True))
        assert (await read_message(reader)).whole
        assert (await read_message(reader)).whole
