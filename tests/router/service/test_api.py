"""The brain over HTTP: for gateways that only want to know."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moonpool.router.base import Stored, Tier
from moonpool.router.hashing import prefix_hashes, prefix_seed
from moonpool.router.service.probe import ANSWER_BYTES_MAX
from tests.router.rig import TinyWorker, ask, completion, get, post, post_json, routed, until

PROMPT = list(range(1, 65))
CASES: list[tuple[str, Any, int]] = [
    ("/query", {}, 400),
    ("/query", {"token_ids": "abc"}, 400),
    ("/query", {"token_ids": [-1]}, 400),
    ("/query", {"token_ids": [1], "instance_id": "nobody"}, 404),
    ("/query", {"token_ids": PROMPT, "block_size": 7}, 400),
    ("/reserve", {"seq_hashes": [1, 2], "block_size": 7}, 400),
    ("/explain", {"seq_hashes": [1, 2], "block_size": 7}, 400),
    ("/reserve", {"token_ids": [1], "temperature": -1}, 400),
    ("/reserve", {"token_ids": [1], "preferred": {"zone=b": 1e300}}, 400),
    ("/reserve", {"token_ids": [1], "instance_id": "nobody"}, 404),
    ("/commit", {"booking_id": "nobody"}, 404),
    ("/commit", {}, 400),
    ("/grow", {"booking_id": "x", "blocks": -1}, 400),
    ("/free", {"booking_id": "nobody"}, 404),
    ("/unregister", {"instance_id": "nobody"}, 404),
    ("/drain", {"instance_id": "nobody"}, 404),
    ("/register", {"instance_id": ""}, 400),
    ("/register", {"instance_id": "w", "ranks": 100_000}, 400),
    ("/register", {"instance_id": "w", "block_size": -5}, 400),
    ("/register", {"url": "http://x"}, 400),
    ("/register", {"instance_id": "w", "url": "ftp://h"}, 400),
    ("/register", {"instance_id": "w", "url": "http://a..b:1"}, 400),
    ("/register", {"instance_id": "w", "endpoint": "nonsense"}, 400),
    ("/register", {"instance_id": "w", "endpoint": "tcp://h:99999"}, 400),
    ("/register", {"instance_id": "w", "replay_endpoint": "ipc://"}, 400),
    ("/register", {"instance_id": "w", "transfer": "nowhere"}, 400),
    ("/register", {"instance_id": "w", "dp_rank": -1}, 400),
    ("/reserve", {"seq_hashes": [1], "prompt_tokens": 10**30}, 400),
    ("/reserve", {"seq_hashes": [1], "block_size": 10**30}, 400),
    ("/reserve", {"token_ids": [1], "priority": 10**400}, 400),
    ("/register", {"instance_id": "w" * 513}, 400),
    ("/register", {"instance_id": "w", "endpoint": "tcp://a b:5"}, 400),
    ("/query", b"{", 400),
]


@pytest.mark.parametrize(("path", "body", "status"), CASES)
async def test_what_makes_no_sense_is_refused(path: str, body: Any, status: int) -> None:
    async with routed(TinyWorker("a")) as router:
        got = await ask(router, post(path, body))
        assert got.status == status
        assert got.json["error"]["message"]


async def test_a_query_tells_what_each_worker_holds() -> None:
    a, b = TinyWorker("a"), TinyWorker("b")
    async with routed(a, b) as router:
        hashes = prefix_hashes(PROMPT, 16, prefix_seed("tiny"))
        brain = router.desk.brain
        brain.apply_event(a.id, Stored([int(h) for h in hashes[:2]]))
        brain.apply_event(a.id, Stored([int(hashes[2])], int(hashes[1]), tier=Tier.HOST))
        question = {"model": "tiny", "token_ids": PROMPT, "block_size": 16}
        got = await post_json(router, "/query", question)
        empty = {"longest_matched": 0, "GPU": 0, "DP": {"0": 0}, "CPU": 0, "DISK": 0}
        held = {"longest_matched": 48, "GPU": 32, "DP": {"0": 32}, "CPU": 48, "DISK": 48}
        assert got.json == {"default": {a.id: held, b.id: empty}}
        by_hash = {"model": "tiny", "seq_hashes": [int(h) for h in hashes], "block_size": 16}
        assert (await post_json(router, "/query_by_hash", by_hash)).json == got.json
        signed = [int(h) - (1 << 64) if h >= 1 << 63 else int(h) for h in hashes.tolist()]
        by_hash["seq_hashes"] = signed  # as languages without unsigned numbers write them
        assert (await post_json(router, "/query_by_hash", by_hash)).json == got.json
        one = {**question, "instance_id": b.id, "tenant_id": "t"}
        assert (await post_json(router, "/query", one)).json == {"t": {b.id: empty}}
        assert brain.load.requests.sum() == 0, "a question books nothing"


async def test_the_life_of_a_booking() -> None:
    a, b = TinyWorker("a"), TinyWorker("b")
    async with routed(a, b) as router:
        load = router.desk.brain.load
        got = (await post_json(router, "/reserve", {"token_ids": PROMPT})).json
        assert got["url"] in (a.url, b.url) and len(got["scores"]) == 2
        booking = {"booking_id": got["booking_id"]}
        assert load.prefill_tokens.sum() == 64
        page = (await get(router, "/metrics")).body.decode()
        for kind, count in (("prefill_tokens", 64), ("decode_blocks", 4), ("requests", 1)):
            name = f'moonpool_router_worker_{kind}{{worker="{got["instance_id"]}"}}'
            assert f"{name} {count}\n" in page
        assert (await post_json(router, "/commit", booking)).status == 200
        assert load.prefill_tokens.sum() == 0
        before = load.decode_blocks.sum()
        assert (await post_json(router, "/grow", {**booking, "blocks": 3})).status == 200
        assert load.decode_blocks.sum() == before + 3
        done = {**booking, "hit_tokens": 0}
        assert (await post_json(router, "/free", done)).status == 200
        assert load.requests.sum() == 0
        assert (await post_json(router, "/free", done)).status == 404


async def test_a_booking_named_by_the_caller() -> None:
    async with routed(TinyWorker("a")) as router:
        asked = {"token_ids": PROMPT, "booking_id": "mine"}
        assert (await post_json(router, "/reserve", asked)).json["booking_id"] == "mine"
        assert (await post_json(router, "/reserve", asked)).status == 400, "a name is used once"


async def test_the_next_reservation_sees_the_first() -> None:
    """Booked at decision time: a burst does not fall on one worker."""
    a, b = TinyWorker("a"), TinyWorker("b")
    async with routed(a, b) as router:
        asked = [post_json(router, "/reserve", {"token_ids": [n] * 64}) for n in range(10)]
        chosen = [got.json["instance_id"] for got in await asyncio.gather(*asked)]
        assert chosen.count(a.id) == chosen.count(b.id) == 5


async def test_a_worker_without_an_address_is_known_to_the_brain() -> None:
    async with routed(workers="") as router:
        told = {"instance_id": "engine-1", "modelname": "m", "block_size": 16, "dp_rank": 1}
        got = await post_json(router, "/register", told)
        assert got.json == {"status": "registered successfully", "instance_id": "engine-1"}
        assert (await post_json(router, "/register", told)).status == 400, "it is registered"
        got = await post_json(router, "/reserve", {"token_ids": PROMPT, "model": "m"})
        assert got.json["instance_id"] == "engine-1"
        assert (await ask(router, completion(PROMPT, model="m"))).status == 503, "nowhere to send"
        got = await post_json(router, "/unregister", {"instance_id": "engine-1"})
        assert got.json["removed_instances"] == ["engine-1|default|0"]
        assert (await post_json(router, "/reserve", {"token_ids": PROMPT})).status == 503


async def test_a_registered_worker_is_asked_who_it_is_and_serves() -> None:
    blocks = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="223"} 1.0'
    worker = TinyWorker("late", context=512, metrics=f"# HELP\n{blocks}\n")
    await worker.start()
    async with routed(workers="") as router:
        told = {"instance_id": "late", "url": worker.url, "endpoint": "tcp://127.0.0.1:1"}
        await post_json(router, "/register", told)
        await until(lambda: router.desk.seats["late"].ready)
        assert (await ask(router, completion(PROMPT))).json["by"] == "late"
        page = (await get(router, "/workers")).json["workers"][0]
        assert (page["model"], page["context"], page["source"]) == ("tiny", 512, "api")
        assert page["blocks"] == 223
        assert (await get(router, "/v1/models")).json["data"][0]["id"] == "tiny"
    worker.kill()


async def test_a_worker_whose_metrics_are_too_long_serves_all_the_same() -> None:
    worker = TinyWorker("a", metrics="#" * (ANSWER_BYTES_MAX + 1))
    await worker.start()
    async with routed(workers="") as router:
        told = {"instance_id": "a", "url": worker.url, "endpoint": "tcp://127.0.0.1:1"}
        await post_json(router, "/register", told)
        await until(lambda: router.desk.seats["a"].ready)
        assert router.desk.seats["a"].worker.kv_blocks_max == 0
    worker.kill()


async def test_explain_gives_reasons_and_books_nothing() -> None:
    async with routed(TinyWorker("a"), TinyWorker("b")) as router:
        got = (await post_json(router, "/explain", {"prompt": "Once upon a time"})).json
        assert got["reason"] == "cost" and got["booking_id"] == ""
        assert {"cost", "hit_tokens", "prefill_tokens", "busy"} <= set(got["scores"][0])
        assert {s["worker"] for s in got["scores"]} == set(got["learnt"])
        assert router.desk.brain.load.requests.sum() == 0


async def test_requests_of_other_salts_share_nothing() -> None:
    async with routed(TinyWorker("a")) as router:
        await ask(router, completion(PROMPT, cache_salt="x"))
        for salt, hit in (("x", 48), ("y", 0), (None, 0)):
            asked = {"token_ids": PROMPT, "cache_salt": salt}
            got = await post_json(router, "/explain", asked)
            assert got.json["predicted_hit_tokens"] == hit, salt


async def test_wrong_methods_and_paths() -> None:
    async with routed(TinyWorker("a")) as router:
        assert (await get(router, "/query")).status == 405
        assert (await get(router, "/nowhere")).status == 404


async def test_texts_without_a_tokenizer_go_where_they_were() -> None:
    a, b = TinyWorker("a"), TinyWorker("b")
    async with routed(a, b) as router:
        text = "All work and no play makes Jack a dull boy. " * 20
        first = (await ask(router, completion(text))).json["by"]
        for number in range(4):
            got = await ask(router, completion(text + f"and more {number}"))
            assert got.json["by"] == first
        chat = {"messages": [{"role": "user", "content": text}]}
        assert (await ask(router, post("/v1/chat/completions", chat))).status == 200
