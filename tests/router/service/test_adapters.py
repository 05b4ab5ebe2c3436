"""LoRA adapters, which vLLM serves as models of their own names."""

from __future__ import annotations

from tests.router.rig import TinyWorker, ask, completion, get, post_json, routed

PROMPT = list(range(1, 65))


async def test_a_request_for_an_adapter_goes_where_it_is_loaded() -> None:
    plain, tuned = TinyWorker("plain"), TinyWorker("tuned", adapters=("tune", "other"))
    async with routed(plain, tuned) as router:
        for number in range(4):
            got = await ask(router, completion([number] * 64, model="tune"))
            assert got.json["by"] == "tuned"
        assert tuned.asked[0].json["model"] == "tune"
        listed = (await get(router, "/v1/models")).json["data"]
        assert {(card["id"], card["parent"]) for card in listed} == {
            ("tiny", None),
            ("tune", "tiny"),
            ("other", "tiny"),
        }
        got = await ask(router, completion(PROMPT, model="nobody"))
        assert got.status == 404 and "tune" in got.json["error"]["message"]


async def test_an_adapters_prefix_is_not_its_models() -> None:
    async with routed(TinyWorker("a", adapters=("tune", "other"))) as router:
        await ask(router, completion(PROMPT, model="tune"))
        for model, held in (("tune", 48), ("tiny", 0), ("other", 0)):
            asked = {"token_ids": PROMPT, "model": model}
            got = await post_json(router, "/explain", asked)
            assert got.json["predicted_hit_tokens"] == held, model
