"""The router's proxy: what it adds to one client's request, and requests a second of 64.

Prompts of 512 token ids, answers of 16 server-sent events, each written by itself. Two workers in
one process, the load in this one, and the proxy under test between them; all share the machine.
Subjects: no proxy at all, the router with routing, booking and metrics, and a plain pass-through
of Starlette and aiohttp on uvicorn, in turns in the same run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, Final, NamedTuple

import moonpool
from moonpool.bench.proxy_load import Load, run_load
from moonpool.bench.runner import CpuMeter, Row, Settings, make_row
from moonpool.core.errors import DeadlineExceeded, Unreachable, missing_extra
from moonpool.router.http.fetch import fetch

BENCH: Final = "proxy"
CLIENTS: Final = 64
ALONE_REQUESTS: Final = 600
CROWD_REQUESTS: Final = 6000
START_S: Final = 60.0


class Child(NamedTuple):
    """A process of the bench and what it said when it was ready."""

    process: subprocess.Popen[str]
    port: int
    ports: list[int]


@contextlib.contextmanager
def child(role: str, *words: str) -> Iterator[Child]:
    """A part in a process of its own, ended with the block. Raises Unreachable."""
    import os

    command = [sys.executable, "-m", "moonpool.bench.proxy_parts", role, str(os.getpid()), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise Unreachable(f"the bench's {role} did not start; see above")
        told: dict[str, Any] = json.loads(line)
        yield Child(process, told["port"], told.get("ports", []))
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def rows(settings: Settings) -> Iterator[Row]:
    """Two rows a subject: one client, and 64."""
    try:
        import aiohttp  # noqa: F401
        import httptools  # noqa: F401
        import starlette  # noqa: F401
    except ImportError:
        raise missing_extra("the bench of the proxy", "bench,router") from None
    with (
        child("worker") as worker,
        child("router", *map(str, worker.ports)) as router,
        child("passthrough", str(worker.port)) as plain,
    ):
        subjects = {
            "direct": (worker.port, ()),
            "moonpool": (router.port, (router.process.pid,)),
            "starlette+aiohttp": (plain.port, (plain.process.pid,)),
        }
        asyncio.run(_until_ready(router.port))
        alone: dict[str, list[Load]] = {name: [] for name in subjects}
        crowd: dict[str, list[Load]] = {name: [] for name in subjects}
        cpu: dict[str, list[float]] = {name: [] for name in subjects}
        for turn in range(settings.rounds + 1):
            for name, (port, pids) in subjects.items():
                one = run_load(port, 1, ALONE_REQUESTS)
                meter = CpuMeter(pids)
                own = CpuMeter()
                many = run_load(port, CLIENTS, CROWD_REQUESTS)
                if turn > 0:  # the first round warms up
                    alone[name].append(one)
                    crowd[name].append(many)
                    cpu[name].append((meter.seconds() - own.seconds()) / CROWD_REQUESTS * 1e6)
    yield from _rows(settings, alone, crowd, cpu)


async def _until_ready(port: int) -> None:
    """The router has found both workers well. Raises DeadlineExceeded."""
    wanted = 2
    try:
        async with asyncio.timeout(START_S):
            while True:
                answer = await fetch(f"http://127.0.0.1:{port}/ready")
                if json.loads(answer.body)["ready_workers"] == wanted:
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise DeadlineExceeded(f"the router found no workers within {START_S:g} s") from None


def _rows(
    settings: Settings,
    alone: dict[str, list[Load]],
    crowd: dict[str, list[Load]],
    cpu: dict[str, list[float]],
) -> Iterator[Row]:
    direct_us = _median(load.p50_us for load in alone["direct"])
    for name in alone:
        told = version("aiohttp") if "+" in name else moonpool.__version__
        p50 = _median(load.p50_us for load in alone[name])
        figures: dict[str, object] = {
            "p50_us": p50,
            "p99_us": _median(load.p99_us for load in alone[name]),
            "overhead_us": p50 - direct_us,
            "ok": all(load.ok for load in alone[name]),
        }
        yield make_row(BENCH, "1 client", settings.rounds, figures, subject=name, version=told)
        figures = {
            "p50_us": _median(load.p50_us for load in crowd[name]),
            "p99_us": _median(load.p99_us for load in crowd[name]),
            "ops_per_s": _median(load.per_s for load in crowd[name]),
            "proxy_cpu_us": _median(cpu[name]),
            "ok": all(load.ok for load in crowd[name]),
        }
        case = f"{CLIENTS} clients"
        yield make_row(BENCH, case, settings.rounds, figures, subject=name, version=told)


def _median(values: Any) -> float:
    return float(statistics.median(list(values)))
