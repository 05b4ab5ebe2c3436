"""The router before two real engines of a tiny model: what it predicts is what they had."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bench.router_live import (
    BLOCK,
    SESSIONS,
    EngineProcess,
    converse,
    engine,
    one_turn,
    routed,
    sessions,
)

from moonpool.engine.tokenizer import load_tokenizer
from moonpool.router.http.fetch import fetch
from moonpool.router.service.server import RouterServer
from tests.engine.tiny import CONFIG, write_model
from tests.router.rig import ask, post

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]
VOCABULARY = range(10, 250)
TOKEN_BYTES = (
    2 * CONFIG["num_hidden_layers"] * CONFIG["num_key_value_heads"] * CONFIG["head_dim"] * 2
)
SESSION_PAGES = 19  # at its longest


async def test_hits_are_as_predicted_and_a_killed_engine_loses_nothing(tmp_path: Path) -> None:
    model = str(await asyncio.to_thread(write_model, tmp_path / "model"))
    # Room for all sessions: without events the router cannot know what is evicted.
    kv_bytes = (SESSIONS * SESSION_PAGES + 8) * BLOCK * TOKEN_BYTES
    async with (
        engine(model, kv_bytes, events=False) as a,
        engine(model, kv_bytes, events=False) as b,
    ):
        async with routed([a, b], health_ms=100) as router:
            found = await converse([router.url], VOCABULARY)
            turns = [turn for session in found for turn in session.turns]
            assert all(turn.whole for turn in turns) and len(turns) == 72
            actual = sum(turn.cached_tokens for turn in turns)
            counters = router.desk.counters
            assert counters.hits_actual_tokens == actual
            assert abs(counters.hits_predicted_tokens - actual) <= 0.02 * actual
            # Every turn but the first of a session finds its context where it was.
            assert actual >= 0.9 * sum(t.prompt_tokens for s in found for t in s.turns[1:])
            served = [worker for worker, _ in counters.requests]
            assert len(set(served)) == 2, "one engine got everything"

            fresh = sessions(VOCABULARY, seed=9)
            asked = [asyncio.ensure_future(one_turn(router.url, s, [11])) for s in fresh]
            while not any(seat.running > 2 for seat in router.desk.seats.values()):
                await asyncio.sleep(0.001)
            begun = {id(s) for s in fresh if s.turns}
            a.process.kill()
            await asyncio.gather(*asked, return_exceptions=True)
            cut = [s for s in fresh if s.turns and not s.turns[0].whole]
            streaming = [s for s in cut if s.turns[0].first_token_s > 0]
            assert len(cut) == len(streaming), "a request that had not begun to stream was lost"
            assert all(s.turns for s in fresh) and len(begun) < len(fresh)


async def heard_all(fleet: list[EngineProcess], router: RouterServer) -> None:
    """Wait until the router knows what the engines have published by now: on a busy machine an
    answer can be over before the events of its first step have arrived."""
    async with asyncio.timeout(60):
        for one in fleet:
            page = (await fetch(f"{one.url}/metrics", timeout_s=30)).body.decode()
            found = re.search(r"event_messages(?:_total)? (\d+)", page)
            assert found is not None, page
            [subscriber] = router.followed.subscribers(one.url.removeprefix("http://"))
            while subscriber.feed.expected < int(found[1]):
                await asyncio.sleep(0.005)


async def test_what_engines_evict_is_no_hit_predicted(tmp_path: Path) -> None:
    """Each cache holds half of the sessions; alone, one engine must evict all the time, and its
    events are all that tells the router so. One client: two take each other's blocks between a
    decision and its admission, and no router can know that."""
    model = str(await asyncio.to_thread(write_model, tmp_path / "model"))
    kv_bytes = SESSIONS // 2 * SESSION_PAGES * BLOCK * TOKEN_BYTES
    async with engine(model, kv_bytes) as a, engine(model, kv_bytes) as b:
        for fleet in ([a, b], [a]):
            async with routed(fleet, digest_ms=100) as router:
                heard = partial(heard_all, fleet, router)
                found = await converse(
                    [router.url], VOCABULARY, seed=len(fleet), clients=1, before=heard
                )
                turns = [turn for session in found for turn in session.turns]
                assert all(turn.whole for turn in turns)
                actual = sum(turn.cached_tokens for turn in turns)
                predicted = router.desk.counters.hits_predicted_tokens
                assert actual > 0 and abs(predicted - actual) <= 0.02 * actual
                assert not any(m.problems for m in router.desk.brain.fleet.members.values())
                for worker in router.desk.seats:
                    [subscriber] = router.followed.subscribers(worker)
                    accounts = subscriber.accounts
                    assert accounts.compared > 0 and accounts.drifted == 0, "events told it all"
        asked = sum(turn.prompt_tokens for session in found for turn in session.turns[1:])
        assert actual < 0.5 * asked, "the one engine evicted too little for this to show anything"


async def test_texts_and_conversations_are_hashed_as_the_engine_does(tmp_path: Path) -> None:
    """By the model's own tokenizer and chat template; the second question goes on from the first
    one."""
    folder = await asyncio.to_thread(write_model, tmp_path / "model")
    text = "All work and no play makes Jack a dull boy. " * 8
    asked: dict[str, Callable[[str], dict[str, Any]]] = {
        "/v1/completions": lambda text: {"prompt": text},
        "/v1/chat/completions": lambda text: {"messages": [{"role": "user", "content": text}]},
    }
    async with (
        engine(str(folder), 32 * BLOCK * TOKEN_BYTES) as one,
        routed([one], load_tokenizer(folder)) as router,
    ):
        counters = router.desk.counters
        for path, body in asked.items():
            for longer in (text, text + "And more."):
                actual, predicted = counters.hits_actual_tokens, counters.hits_predicted_tokens
                await heard_all([one], router)
                more = {"model": "live", "max_tokens": 4}
                assert (await ask(router, post(path, body(longer) | more))).status == 200
            had = counters.hits_actual_tokens - actual
            assert had >= 5 * BLOCK, path
            assert counters.hits_predicted_tokens - predicted == had, path
