"""Prompt and answer on two workers: bodies, and the proxy between real HTTP servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moonpool.core.errors import BadConfig, BadRequest
from moonpool.router.service.server import RouterServer
from moonpool.router.service.split import split_bodies
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
    routed,
    send_json,
    stream_four,
    until,
)

PROMPT = list(range(1, 101))


def test_the_two_bodies() -> None:
    body = json.dumps(
        {"prompt": [1, 2], "max_tokens": 50, "stream": True, "stream_options": {"x": 1}, "n": 1}
    ).encode()
    prefill, decode = map(json.loads, split_bodies(body, "id1", "p:7500", "e1"))
    assert prefill == {
        "prompt": [1, 2],
        "max_tokens": 1,
        "stream": False,
        "n": 1,
        "kv_transfer_params": {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "transfer_id": "id1",
        },
    }
    assert decode == {
        **json.loads(body),
        "kv_transfer_params": {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "transfer_id": "id1",
            "remote": "p:7500",
            "remote_engine_id": "e1",
        },
    }


def test_both_names_of_the_limit() -> None:
    body = b'{"messages":[],"max_completion_tokens":50,"min_tokens":9}'
    prefill = json.loads(split_bodies(body, "i", "p:1").prefill)
    assert (prefill["max_tokens"], prefill["max_completion_tokens"]) == (1, 1)
    assert "min_tokens" not in prefill


def test_what_a_client_claims_of_a_transfer_is_replaced() -> None:
    body = b'{"prompt":[1],"kv_transfer_params":{"remote":"evil:1","do_remote_prefill":true}}'
    prefill, decode = map(json.loads, split_bodies(body, "i", "p:1"))
    assert "remote" not in prefill["kv_transfer_params"]
    assert decode["kv_transfer_params"]["remote"] == "p:1"


def test_no_object_is_refused() -> None:
    with pytest.raises(BadRequest):
        split_bodies(b"[1]", "i", "p:1")


async def prefills(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
    send_json(writer, 200, {"choices": [{"text": ""}]})


async def never(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def waits_for_blocks(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
    """As a decode worker does: with remote prefill it would wait, without it computes."""
    if "kv_transfer_params" in got.json:
        await asyncio.sleep(60)
    await stream_four(worker, got, writer)


@contextlib.asynccontextmanager
async def split(
    prefill: list[Behaviour], decode: list[Behaviour], **settings: Any
) -> AsyncIterator[tuple[RouterServer, list[TinyWorker], list[TinyWorker]]]:
    """A router before so many prefill and decode workers."""
    ps = [TinyWorker(f"p{i}", behaviour) for i, behaviour in enumerate(prefill)]
    ds = [TinyWorker(f"d{i}", behaviour) for i, behaviour in enumerate(decode)]
    for worker in [*ps, *ds]:
        await worker.start()
    settings = {
        "workers": "",
        "prefill": " ".join(f"{p.url},transfer=127.0.0.1:{9000 + i}" for i, p in enumerate(ps)),
        "decode": " ".join(d.url for d in ds),
        "remote_prefill_tokens": 0,
        **settings,
    }
    async with routed(*ps, *ds, **settings) as router:
        yield router, ps, ds


def params(got: Got) -> dict[str, Any]:
    found: dict[str, Any] = got.json["kv_transfer_params"]
    return found


async def test_both_halves_are_sent_at_once_under_one_id() -> None:
    """Each worker answers only after the other was asked: neither half waits."""

    async def after_decode(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        await until(lambda: bool(ds[0].asked))
        await prefills(worker, got, writer)

    async def after_prefill(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        await until(lambda: bool(ps[0].asked))
        await stream_four(worker, got, writer)

    ps: list[TinyWorker] = []
    ds: list[TinyWorker] = []
    async with split([after_decode], [after_prefill]) as (router, (p,), found):
        ps.append(p)
        ds += found
        got = await ask(router, completion(PROMPT, stream=True, max_tokens=9))
        assert got.whole and got.events[0]["choices"][0]["text"] == "d00"
        assert params(p.asked[0])["transfer_id"] == params(ds[0].asked[0])["transfer_id"]
        assert params(ds[0].asked[0])["remote"] == "127.0.0.1:9000"
        assert (p.asked[0].json["max_tokens"], p.asked[0].json["stream"]) == (1, False)
        assert ds[0].asked[0].json["max_tokens"] == 9
        ids = {got.headers["x-request-id"] for got in (p.asked[0], ds[0].asked[0])}
        assert len(ids) == 1
        await until(lambda: not router.relay.running)
        assert router.desk.brain.load.requests.sum() == 0


async def test_two_by_two_spreads() -> None:
    async with split([prefills, prefills], [stream_four, stream_four]) as (router, ps, ds):
        for number in range(12):
            assert (await ask(router, completion([number] * 100))).status == 200
        await until(lambda: all(worker.asked for worker in [*ps, *ds]))
        ids = [params(got)["transfer_id"] for d in ds for got in d.asked]
        assert len(set(ids)) == 12


async def test_a_short_prompt_stays_on_its_decode_worker() -> None:
    async with split([prefills], [stream_four], remote_prefill_tokens=1000) as (router, (p,), (d,)):
        assert (await ask(router, completion(PROMPT))).status == 200
        assert p.asked == [] and "kv_transfer_params" not in d.asked[0].json


async def hang_up(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(0.05)
    writer.transport.abort()


async def refuses(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
    send_json(writer, 500, {})


@pytest.mark.parametrize("failing", [hang_up, refuses])
async def test_a_failed_prefill_is_computed_by_the_decode_worker(failing: Behaviour) -> None:
    async with split([failing], [waits_for_blocks]) as (router, (p,), (d,)):
        got = await asyncio.wait_for(ask(router, completion(PROMPT, stream=True)), 10)
        assert got.whole and got.events[0]["choices"][0]["text"] == "d00"
        assert len(p.asked) == 1 and len(d.asked) == 2
        assert router.desk.counters.prefill_failures == 1


async def test_a_prefill_worker_found_down_by_its_failure_costs_one_try() -> None:
    """The failure that ends its worker is counted once, and the try after it is left alone."""
    settings = {"retries": 1, "health_failures": 1, "health_ms": 60_000}
    async with split([hang_up], [waits_for_blocks], **settings) as (router, (p,), (d,)):
        got = await asyncio.wait_for(ask(router, completion(PROMPT, stream=True)), 10)
        assert got.whole and got.events[0]["choices"][0]["text"] == "d00"
        assert len(d.asked) == 2
        assert router.desk.counters.prefill_failures == 1
        assert not router.desk.seats[p.id].ready


@pytest.mark.parametrize("failing", [hang_up, refuses])
async def test_without_a_try_left_the_decode_half_goes_on(failing: Behaviour) -> None:
    """It hears of the failure over the side channel, and computes the prompt itself."""

    async def hears_of_it(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        await until(lambda: routers[0].desk.counters.prefill_failures == 1)
        await stream_four(worker, got, writer)

    routers: list[RouterServer] = []
    async with split([failing], [hears_of_it], retries=0) as (router, _, (d,)):
        routers.append(router)
        got = await ask(router, completion(PROMPT, stream=True))
        assert got.whole and got.events[0]["choices"][0]["text"] == "d00"
        assert len(d.asked) == 1


async def test_another_prefill_worker_takes_over() -> None:
    """The decode worker answers as soon as a good prefill worker serves its transfer."""

    async def when_prefilled(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        if "kv_transfer_params" in got.json:
            mine = params(got)["transfer_id"]
            await until(lambda: any(params(g)["transfer_id"] == mine for g in ps[1].asked))
        await stream_four(worker, got, writer)

    ps: list[TinyWorker] = []
    async with split([hang_up, prefills], [when_prefilled]) as (router, found, (d,)):
        ps += found
        for number in range(4):
            got = await ask(router, completion([number] * 100, stream=True))
            assert got.events[0]["choices"][0]["text"] == "d00"


async def test_a_prefill_worker_that_is_gone() -> None:
    async with split([prefills], [waits_for_blocks], health_ms=60_000) as (router, (p,), (d,)):
        p.kill()
        got = await asyncio.wait_for(ask(router, completion(PROMPT, stream=True)), 10)
        assert got.whole and "kv_transfer_params" not in d.asked[-1].json


async def test_a_failed_prefill_after_the_first_byte_changes_nothing() -> None:
    begun = asyncio.Event()

    async def fails_late(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        await begun.wait()
        writer.transport.abort()

    async def goes_on(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(event(1)))
        await until(lambda: routers[0].desk.counters.prefill_failures == 1)
        writer.write(chunk(event(2)) + b"0\r\n\r\n")

    routers: list[RouterServer] = []
    async with split([fails_late], [goes_on]) as (router, (p,), (d,)):
        routers.append(router)
        async with connected(router) as (reader, writer):
            writer.write(completion(PROMPT, stream=True))
            await reader.readuntil(b"data: 1\n\n")
            begun.set()
            rest = await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 10)
        assert b"data: 2" in rest
        assert len(p.asked) == len(d.asked) == 1


async def test_a_decode_worker_that_fails_ends_its_prefill() -> None:
    async with split([never], [hang_up, stream_four]) as (router, (p,), ds):
        for number in range(2):  # one of them begins at the failing one
            got = await ask(router, completion([number] * 100, stream=True))
            assert got.events[0]["choices"][0]["text"] == "d10"
        await asyncio.wait_for(p.aborted.wait(), 10)
        ids = [params(got)["transfer_id"] for got in p.asked]
        assert len(set(ids)) == len(ids), "every attempt has a transfer of its own"


async def test_a_client_that_hangs_up_ends_both_halves() -> None:
    async with split([never], [never]) as (router, (p,), (d,)):
        async with connected(router) as (_, writer):
            writer.write(completion(PROMPT))
            await until(lambda: bool(p.asked) and bool(d.asked))
        await asyncio.wait_for(asyncio.gather(p.aborted.wait(), d.aborted.wait()), 10)
        assert router.desk.brain.load.requests.sum() == 0


async def test_a_time_out_ends_both_halves() -> None:
    async with split([never], [never], first_byte_ms=200) as (router, (p,), (d,)):
        assert (await ask(router, completion(PROMPT))).status == 504
        await asyncio.wait_for(asyncio.gather(p.aborted.wait(), d.aborted.wait()), 10)


async def test_without_a_prefill_worker_the_decode_worker_does_all() -> None:
    async with split([prefills], [stream_four], health_ms=50) as (router, (p,), (d,)):
        p.kill()
        await until(lambda: not router.desk.seats[p.id].ready)
        assert (await ask(router, completion(PROMPT))).status == 200
        assert "kv_transfer_params" not in d.asked[-1].json


async def test_several_prompts_at_once_are_not_split() -> None:
    async with split([prefills], [stream_four]) as (router, (p,), (d,)):
        assert (await ask(router, completion([PROMPT, PROMPT]))).status == 200  # type: ignore[list-item]
        assert p.asked == [] and "kv_transfer_params" not in d.asked[0].json
        await until(lambda: not router.relay.running)
        assert router.desk.brain.load.requests.sum() == 0


def test_a_prefill_worker_needs_a_side_channel() -> None:
    from moonpool.core.router_section import RouterConfig

    with pytest.raises(BadConfig, match="transfer="):
        RouterServer(RouterConfig(prefill="http://p:1"))
