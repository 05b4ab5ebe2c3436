"""The router before two real engines: sessions that grow turn by turn, against round robin.

    python -m bench.router_live smollm2 --kv-memory 168134400 [--rounds N] [--no-events]

The model is a Hugging Face directory, a GGUF file or 'smollm2'. Twelve sessions of six turns over
contexts of about 1,000 tokens, a closed loop of two clients, no pool; each cache holds half of all
sessions: 114 pages of 64 tokens. One JSON object a row: hit tokens, predicted and told, and time to
the first token; at the end one engine is killed under twelve requests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from moonpool.core.router_section import RouterConfig
from moonpool.router.service.asks import TextReader
from moonpool.router.service.server import RouterServer

SESSIONS: Final = 12
TURNS: Final = 6
CONTEXT_TOKENS: Final = 1000
QUESTION_TOKENS: Final = 24
ANSWER_TOKENS: Final = 8
CLIENTS: Final = 2
START_S: Final = 120.0
BLOCK: Final = 64
QUEUE_MS: Final = 600_000  # the one that is left may have minutes of work waiting


@dataclass
class EngineProcess:
    """A `moonpool engine`, or another worker."""

    process: asyncio.subprocess.Process
    port: int
    events: str | None
    replay: str | None
    block: int = BLOCK

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def spec(self) -> str:
        """As a router is told of it."""
        told = f",events={self.events},replay={self.replay}" if self.events else ""
        return f"{self.url},block={self.block}{told}"


@contextlib.asynccontextmanager
async def engine(model: str, kv_bytes: int, *, events: bool = True) -> AsyncIterator[EngineProcess]:
    """A started engine on free ports."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "moonpool", "engine", "--model", model, "--port", "0", "--json"),
        *("--kv-memory", str(kv_bytes), "--block-size", str(BLOCK), "--threads", "1"),
        *("--served-name", "live", *(["--events"] if events else [])),
        *("--queue-ms", str(QUEUE_MS)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), START_S)
        told = json.loads(line)
        yield EngineProcess(process, told["port"], told["events"], told["replay"])
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@dataclass
class Turn:
    """What one request found."""

    whole: bool
    first_token_s: float
    cached_tokens: int
    prompt_tokens: int


@dataclass
class Session:
    """A conversation in token ids."""

    tokens: list[int]
    turns: list[Turn] = field(default_factory=list)


def sessions(vocabulary: Sequence[int], seed: int = 1) -> list[Session]:
    draw = random.Random(seed)
    return [Session(draw.choices(vocabulary, k=CONTEXT_TOKENS)) for _ in range(SESSIONS)]


async def one_turn(url: str, session: Session, question: list[int]) -> None:
    """Ask, and remember question and answer for the next turn."""
    prompt = session.tokens + question
    body = json.dumps(
        {
            "model": "live",
            "prompt": prompt,
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    host, _, port = url.removeprefix("http://").partition(":")
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: live\r\nContent-Length: {len(body)}\r\n"
    kind = "Content-Type: application/json\r\nConnection: close\r\n\r\n"  # vLLM insists on it
    writer.write((head + kind).encode() + body)
    first_s, answer = 0.0, b""
    while data := await reader.read(65536):
        answer += data
        if not first_s and b"data: " in answer:
            first_s = time.perf_counter() - start
    writer.close()
    usage: dict[str, Any] = {}
    for line in answer.split(b"\n"):
        if line.startswith(b"data: {"):
            usage = json.loads(line[6:]).get("usage") or usage
    details = usage.get("prompt_tokens_details") or {}
    whole = b"data: [DONE]" in answer and bool(usage)
    session.turns.append(Turn(whole, first_s, details.get("cached_tokens", 0), len(prompt)))
    session.tokens = prompt


async def converse(
    urls: Sequence[str],
    vocabulary: Sequence[int],
    seed: int = 1,
    *,
    clients: int = CLIENTS,
    before: Callable[[], Awaitable[None]] | None = None,
) -> list[Session]:
    """All sessions, each turn in a shuffled order; several `urls` are asked in turn. `before` each
    question."""
    draw = random.Random(seed)
    found = sessions(vocabulary, seed)
    number = 0
    for _ in range(TURNS):
        order = draw.sample(found, len(found))
        questions = {id(s): draw.choices(vocabulary, k=QUESTION_TOKENS) for s in order}
        waiting = iter(order)

        async def client(waiting: Any = waiting, questions: Any = questions) -> None:
            nonlocal number
            for session in waiting:
                number += 1
                if before is not None:
                    await before()
                await one_turn(urls[number % len(urls)], session, questions[id(session)])

        await asyncio.gather(*(client() for _ in range(clients)))
    return found


@contextlib.asynccontextmanager
async def routed(
    engines: Sequence[EngineProcess], reader: TextReader | None = None, **settings: Any
) -> AsyncIterator[RouterServer]:
    """A router that has found the engines well, and heard of their caches."""
    specs = " ".join(one.spec for one in engines)
    router = RouterServer(RouterConfig(port=0, workers=specs, **settings), reader)
    await router.start()
    members = router.desk.brain.fleet.members
    try:
        async with asyncio.timeout(START_S):
            while not all(
                seat.ready and (members[seat.id].events or not seat.spec.events)
                for seat in router.desk.seats.values()
            ):
                await asyncio.sleep(0.02)
        yield router
    finally:
        await router.close()


def row(case: str, found: list[Session], **more: Any) -> dict[str, Any]:
    turns = [turn for session in found for turn in session.turns]
    return {
        "bench": "router-live",
        "case": case,
        "requests": len(turns),
        "ok": all(turn.whole for turn in turns),
        "hit_tokens": sum(turn.cached_tokens for turn in turns),
        "prompt_tokens": sum(turn.prompt_tokens for turn in turns),
        "ttft_p50_ms": statistics.median(turn.first_token_s for turn in turns) * 1e3,
        **more,
    }


async def measure(
    model: str, kv_bytes: int, vocabulary: Sequence[int], rounds: int, events: bool
) -> None:
    async with (
        engine(model, kv_bytes, events=events) as a,
        engine(model, kv_bytes, events=events) as b,
    ):
        for one in (a, b):  # the first request of an engine warms it up
            await one_turn(one.url, Session(list(vocabulary[:200])), [])
        for turn in range(rounds):
            seed = 100 + turn * 2
            plain = await converse([a.url, b.url], vocabulary, seed)
            print(json.dumps(row("round robin", plain)), flush=True)
            async with routed([a, b]) as router:
                found = await converse([router.url], vocabulary, seed + 1)
                counters = router.desk.counters
                predicted = counters.hits_predicted_tokens
                print(json.dumps(row("router", found, predicted_tokens=predicted)), flush=True)
        async with routed([a, b], health_ms=100) as router:
            print(json.dumps(await killed(router, a, vocabulary)), flush=True)


async def killed(
    router: RouterServer, one: EngineProcess, vocabulary: Sequence[int]
) -> dict[str, Any]:
    """Twelve requests at once, and an engine dies while it works on several of them."""
    fresh = sessions(vocabulary, seed=9)
    asked = [asyncio.ensure_future(one_turn(router.url, s, [vocabulary[0]])) for s in fresh]
    while not any(seat.running > 2 for seat in router.desk.seats.values()):
        await asyncio.sleep(0.001)
    one.process.kill()
    await asyncio.gather(*asked)
    turns = [session.turns[0] for session in fresh]
    cut = [turn for turn in turns if not turn.whole]
    lost = sum(turn.first_token_s == 0 for turn in cut)
    return {
        "bench": "router-live",
        "case": "one engine killed",
        "requests": len(turns),
        "ok": lost == 0,
        "cut_in_stream": len(cut) - lost,
        "lost_before_it": lost,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--kv-memory", type=int, required=True, help="bytes of half the sessions")
    parser.add_argument("--vocabulary", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-events", action="store_true", help="the router has to guess")
    args = parser.parse_args()
    vocabulary = range(10, args.vocabulary)
    asyncio.run(measure(args.model, args.kv_memory, vocabulary, args.rounds, not args.no_events))


if __name__ == "__main__":
    main()
