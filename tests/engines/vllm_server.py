"""vLLM's own OpenAI server on the CPU, with KV events, as a router's worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from bench.router_live import EngineProcess

from tests.engines.vllm_rig import ENGINE, ENVIRONMENT, ROOT

START_S = 300.0


def free_ports(count: int) -> list[int]:
    """Free a moment ago."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


@contextlib.asynccontextmanager
async def vllm_server(
    model: Path, log: Path, *, block: int, changes: Mapping[str, object]
) -> AsyncIterator[EngineProcess]:
    """A server that answers, in a process group of its own."""
    port, replay = free_ports(2)
    events = f"ipc://{log.with_suffix('.events')}"  # at a tcp:// address vLLM dials, unless it is *
    publish = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": events,
        "replay_endpoint": f"tcp://127.0.0.1:{replay}",
    }
    options = {**ENGINE, **changes, "block_size": block, "kv_events_config": json.dumps(publish)}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
            *("--served-model-name", "live", "--host", "127.0.0.1", "--port", str(port)),
            *("--enforce-eager", "--enable-prompt-tokens-details", *words),
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        async with asyncio.timeout(START_S):
            while not await asyncio.to_thread(_answers, port):
                assert process.returncode is None, f"vLLM ended: {log.read_text()[-4000:]}"
                await asyncio.sleep(0.2)
        yield EngineProcess(process, port, events, f"tcp://127.0.0.1:{replay}", block=block)
    finally:
        kill(process)
        await process.wait()


def kill(process: asyncio.subprocess.Process) -> None:
    """The server and its engine, at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5.0) as one:
        one.sendall(b"GET /health HTTP/1.1\r\nHost: live\r\nConnection: close\r\n\r\n")
        return b" 200 " in one.recv(64)
    return False
