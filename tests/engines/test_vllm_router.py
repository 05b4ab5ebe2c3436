"""`moonpool router` before two vLLM servers: it knows what they hold, a dead one loses nothing that
had not begun, and a client that goes is not computed for any longer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.request import urlopen

from bench.router_live import (
    SESSIONS,
    EngineProcess,
    Session,
    converse,
    one_turn,
    routed,
    row,
    sessions,
)

from moonpool.router.service.server import RouterServer
from tests.engines.vllm_server import kill, vllm_server

BLOCK = 32
SESSION_BLOCKS = 37  # at its longest
VOCABULARY = range(10, 250)
LONG = 1_700  # tokens of an answer that would take half a minute
HALF = {"num_gpu_blocks_override": SESSIONS // 2 * SESSION_BLOCKS + 1}  # and vLLM's null block


async def test_hits_are_as_predicted_and_a_killed_server_loses_nothing(
    model: Path, tmp_path: Path
) -> None:
    logs = [tmp_path / f"{name}.log" for name in "ab"]
    async with (
        vllm_server(model, logs[0], block=BLOCK, changes=HALF) as a,
        vllm_server(model, logs[1], block=BLOCK, changes=HALF) as b,
    ):
        for one in (a, b):  # vLLM tells nothing of its cache until it holds a block
            first = Session(list(VOCABULARY))
            await one_turn(one.url, first, [])
            assert first.turns[0].whole
        async with routed([a, b], health_ms=100) as router:
            await hits_are_as_predicted(router, [a.url, b.url])
            await a_client_that_goes_stops_its_server(router, [a.url, b.url])
            await a_killed_server_loses_nothing(router, a)


async def hits_are_as_predicted(router: RouterServer, urls: list[str]) -> None:
    found = await converse([router.url], VOCABULARY)
    turns = [turn for session in found for turn in session.turns]
    assert all(turn.whole for turn in turns) and len(turns) == 72
    actual = sum(turn.cached_tokens for turn in turns)
    predicted = router.desk.counters.hits_predicted_tokens
    assert router.desk.counters.hits_actual_tokens == actual
    asked = sum(turn.prompt_tokens for session in found for turn in session.turns[1:])
    assert actual > 0.5 * asked and abs(predicted - actual) <= 0.02 * actual
    assert not any(m.problems for m in router.desk.brain.fleet.members.values())
    plain = await converse(urls, VOCABULARY, seed=2)
    p50 = [row("", one)["ttft_p50_ms"] for one in (found, plain)]
    print(f"p50 to the first token: {p50[0]:.0f} ms routed, {p50[1]:.0f} ms round robin")


async def a_client_that_goes_stops_its_server(router: RouterServer, urls: list[str]) -> None:
    before = await computed_tokens(urls)
    request = {"model": "live", "prompt": list(VOCABULARY), "max_tokens": LONG, "stream": True}
    body = json.dumps({**request, "ignore_eos": True, "temperature": 0}).encode()
    reader, writer = await asyncio.open_connection(*router.url.removeprefix("http://").split(":"))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: live\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
    while b"data: " not in await reader.read(65536):
        pass
    writer.close()
    last = -1.0
    while (now := await computed_tokens(urls)) != last:
        last = now
        await asyncio.sleep(1.0)
    assert 0 < now - before < LONG, "it went on for nobody"
    assert not any(seat.running for seat in router.desk.seats.values())


async def computed_tokens(urls: list[str]) -> float:
    """Tokens that the servers' answers have had in all."""
    total = 0.0
    for url in urls:
        text = await asyncio.to_thread(fetched, f"{url}/metrics")
        for line in text.decode().splitlines():
            if line.startswith("vllm:generation_tokens_total"):
                total += float(line.rpartition(" ")[2])
    return total


def fetched(url: str) -> bytes:
    with urlopen(url, timeout=30) as answer:
        found: bytes = answer.read()
        return found


async def a_killed_server_loses_nothing(router: RouterServer, server: EngineProcess) -> None:
    fresh = sessions(VOCABULARY, seed=9)
    waiting = [asyncio.ensure_future(one_turn(router.url, s, [11])) for s in fresh]
    while not any(seat.running > 2 for seat in router.desk.seats.values()):
        await asyncio.sleep(0.001)
    kill(server.process)
    await asyncio.gather(*waiting)
    cut = [s.turns[0] for s in fresh if not s.turns[0].whole]
    assert all(turn.first_token_s > 0 for turn in cut), "one was lost that had not begun"
    assert len(cut) < len(fresh)
