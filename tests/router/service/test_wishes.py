"""Labels, taints and one worker by name: through the proxy by headers, over HTTP by fields."""

from __future__ import annotations

from tests.router.rig import TinyWorker, ask, completion, post, post_json, routed, until
from tests.router.service.test_replicas import PROMPT, load, pair


def wishing(seed: int, headers: str) -> bytes:
    return post("/v1/completions", {"prompt": [seed] * 64}, headers)


def specs(*workers: tuple[TinyWorker, str]) -> str:
    return " ".join(f"{worker.url},{more}" for worker, more in workers)


async def test_only_who_tolerates_a_taint_gets_there() -> None:
    plain, tainted = TinyWorker("plain"), TinyWorker("tainted")
    for worker in (plain, tainted):
        await worker.start()
    workers = specs((plain, "zone=a"), (tainted, "taint=spot+old"))
    async with routed(plain, tainted, workers=workers) as router:
        for seed in range(6):
            got = await ask(router, wishing(seed, "X-Route-Tolerates: spot\r\n"))
            assert got.json["by"] == "plain", "one of two taints is not enough"
        got = await ask(router, wishing(9, "X-Route-Tolerates: old, spot\r\n"))
        assert got.json["by"] == "tainted", "it has done the least"
        assert not [name for name in tainted.asked[0].headers if name.startswith("x-route")]
        reserved = {"token_ids": [7] * 64, "tolerates": ["spot", "old"], "instance_id": tainted.id}
        got = await post_json(router, "/reserve", reserved)
        assert got.json["instance_id"] == tainted.id
        del reserved["tolerates"]
        assert (await post_json(router, "/reserve", reserved)).status == 503


async def test_labels_and_one_by_name() -> None:
    a, b = TinyWorker("a"), TinyWorker("b")
    for worker in (a, b):
        await worker.start()
    async with routed(a, b, workers=specs((a, "zone=x,id=first"), (b, "zone=y"))) as router:
        for seed in range(4):
            got = await ask(router, wishing(seed, "X-Route-Labels: zone=y\r\n"))
            assert got.json["by"] == "b"
            got = await ask(router, wishing(seed, "X-Route-Worker: first\r\n"))
            assert got.json["by"] == "a"
        both = "X-Route-Worker: first\r\nX-Route-Labels: zone=y\r\n"
        for headers in (both, "X-Route-Worker: nobody\r\n", "X-Route-Labels: zone=z\r\n"):
            got = await ask(router, wishing(1, headers))
            assert got.status == 503 and got.headers["retry-after"] == "1"
        assert (await ask(router, wishing(1, "X-Route-Labels: zone\r\n"))).status == 400
        for weight, chosen in ((2.0, b.id), (-2.0, "first")):
            asked = {"token_ids": [9] * 64, "preferred": {"zone=y": weight}}
            got = await post_json(router, "/explain", asked)
            assert got.json["instance_id"] == chosen


async def test_one_by_name_that_fails_is_not_another() -> None:
    a, b = TinyWorker("a"), TinyWorker("b")
    async with routed(a, b, health_ms=60_000) as router:
        a.kill()
        got = await ask(router, wishing(1, f"X-Route-Worker: {a.id}\r\n"))
        assert got.status == 502 and a.id in got.json["error"]["message"]
        assert b.asked == []


async def test_a_peer_counts_what_goes_to_a_tainted_worker() -> None:
    async with pair(TinyWorker("a"), more=",taint=spot") as (one, two):
        asked = {"token_ids": PROMPT, "tolerates": ["spot"]}
        assert (await post_json(one, "/reserve", asked)).status == 200
        await until(lambda: load(two) == 1)
        assert (await ask(two, completion(PROMPT))).status == 503
