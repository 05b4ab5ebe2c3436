"""Spans of calls, of the master's requests and of transfers, and nothing of it when it is off."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from moonpool.core.errors import MissingExtra, ObjectTooLarge
from moonpool.core.sections import ClientConfig, MasterConfig, NodeConfig
from moonpool.core.tracing import Tracer, open_provider
from moonpool.pool import messages as m
from moonpool.pool.cluster import local_directory
from moonpool.pool.columns import pack_keys
from moonpool.pool.results import Hit
from moonpool.pool.tracing_client import (
    TracedAsyncPool,
    TracedAsyncShell,
    TracedPool,
    TracedShell,
)
from moonpool.pool.tracing_server import TracedMaster, TracedNode

WAIT_S = 20.0


class Traced:
    """A master and two nodes on an event loop in a thread; all their spans end up in one place."""

    def __init__(self, directory: str) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.address = ""
        self._told = 0
        self._directory = directory
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._up.wait(30)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        config = MasterConfig(port=0, tracing=True, nodes_expected=2, repair_delay_s=0.1)
        master = TracedMaster(config, provider=self.provider)
        self.address = await master.start()
        nodes = [
            TracedNode(
                NodeConfig(
                    name=f"n{i}",
                    master=self.address,
                    memory=4 << 20,
                    dir=self._directory,
                    persist=False,
                    heartbeat_ms=50,
                ),
                provider=self.provider,
            )
            for i in range(2)
        ]
        ready = [asyncio.Event() for _ in nodes]
        running = [
            asyncio.create_task(node.run(lambda _, one=one: one.set()))  # type: ignore[misc]
            for node, one in zip(nodes, ready, strict=True)
        ]
        for one in ready:
            await one.wait()
        self._up.set()
        await self._stop.wait()
        for node in nodes:
            node.stop()
        with suppress(Exception):
            await asyncio.gather(*running)
        await master.stop()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def spans(self) -> list[ReadableSpan]:
        """What has ended since the last call."""
        ended = self.exporter.get_finished_spans()  # not cleared: one may end in between
        found, self._told = list(ended[self._told :]), len(ended)
        return found

    def named(self, *names: str) -> dict[str, ReadableSpan]:
        """What has ended since the last call, once these are among it: the master's span ends a
        moment after its answer has left."""
        found, until = self.spans(), time.monotonic() + WAIT_S
        while missing := set(names) - {span.name for span in found}:
            assert time.monotonic() < until, f"no span of {missing}"
            time.sleep(0.001)
            found += self.spans()
        return {span.name: span for span in found}

    def config(self, **settings: object) -> ClientConfig:
        return ClientConfig(master=self.address, tracing=True, **settings)  # type: ignore[arg-type]

    def tracer(self) -> Tracer:
        return Tracer(self.provider)


@pytest.fixture(scope="module")
def traced() -> Iterator[Traced]:
    with local_directory("test") as directory:
        running = Traced(str(directory))
        yield running
        running.close()


@pytest.fixture(params=[True, False], ids=["shm", "tcp"])
def pool(traced: Traced, request: pytest.FixtureRequest) -> Iterator[TracedPool]:
    config = traced.config(shared_memory=request.param)
    pool = TracedPool(TracedShell(config, tracer=traced.tracer()), config)
    with pool:
        yield pool
        for key in [one.key for one in pool.list()]:
            pool.remove(key)
    traced.spans()


def by_name(spans: list[ReadableSpan]) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans}


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None, span.name
    return span.parent.span_id


def test_a_put_and_a_get_are_one_tree_each(traced: Traced, pool: TracedPool) -> None:
    traced.spans()
    pool.put("k", b"value")
    below = ("moonpool.master.reserve", "moonpool.master.commit", "moonpool.transfer.put")
    spans = traced.named("moonpool.put", *below)
    root = spans["moonpool.put"]
    assert root.parent is None and root.attributes is not None
    assert (root.attributes["moonpool.keys"], root.attributes["moonpool.status"]) == (1, "stored")
    for child in below:
        assert parent_of(spans[child]) == root.context.span_id, child
        assert spans[child].context.trace_id == root.context.trace_id
    assert "moonpool.put_many" not in spans  # a call inside a call is no call
    moved = spans["moonpool.transfer.put"].attributes
    assert moved is not None
    assert (moved["moonpool.objects"], moved["moonpool.bytes"], moved["moonpool.failed"]) == (
        *(1, 5),
        0,
    )
    assert moved["moonpool.node"] in ("n0", "n1") and moved["moonpool.transport"]


def test_reads_say_how_much_was_there(traced: Traced, pool: TracedPool) -> None:
    pool.put_many(["a", "b"], [b"1", b"2"])
    pool._state.cache.clear()
    traced.spans()
    assert [isinstance(one, Hit) for one in pool.get_many(["a", "b", "c"])] == [True, True, False]
    spans = traced.named("moonpool.get_many", "moonpool.master.lookup")
    told = spans["moonpool.get_many"].attributes
    assert told is not None and (told["moonpool.keys"], told["moonpool.hits"]) == (3, 2)
    look = spans["moonpool.master.lookup"]
    assert look.attributes is not None and look.attributes["moonpool.keys"] == 3
    assert parent_of(look) == spans["moonpool.get_many"].context.span_id
    assert pool.match_prefix(["a", "b", "c"]).count == 2
    told = by_name(traced.spans())["moonpool.match_prefix"].attributes
    assert told is not None and told["moonpool.hits"] == 2


def test_a_read_that_may_be_begun_twice_is_told_as_well(traced: Traced, pool: TracedPool) -> None:
    """Of two copies that are reached by the network: such reads go side by side (read_race.py)."""
    pool.put("twin", b"value", replicas=2)
    pool._state.cache.clear()
    traced.spans()
    assert pool.get("twin") == b"value"
    spans = traced.named("moonpool.get", "moonpool.transfer.read")
    read = spans["moonpool.transfer.read"]
    assert parent_of(read) == spans["moonpool.get"].context.span_id
    assert read.attributes is not None
    assert (read.attributes["moonpool.objects"], read.attributes["moonpool.failed"]) == (1, 0)


def test_no_key_and_no_byte_is_in_a_span(traced: Traced, pool: TracedPool) -> None:
    traced.spans()
    pool.put("secret-key", b"secret-value")
    pool.get("secret-key")
    pool.remove("secret-key")
    assert "secret" not in "".join(span.to_json() for span in traced.spans())


def test_an_error_is_the_spans(traced: Traced, pool: TracedPool) -> None:
    traced.spans()
    with pytest.raises(ObjectTooLarge):
        pool.put("r", bytes(8 << 20))
    failed = by_name(traced.spans())["moonpool.put"]
    assert not failed.status.is_ok
    assert [event.name for event in failed.events] == ["exception"]


def test_the_applications_span_is_the_parent(traced: Traced, pool: TracedPool) -> None:
    traced.spans()
    with traced.provider.get_tracer("app").start_as_current_span("request"):
        pool.put("mine", b"x")
    spans = by_name(traced.spans())
    assert parent_of(spans["moonpool.put"]) == spans["request"].context.span_id


async def test_so_it_is_for_asyncio(traced: Traced) -> None:
    traced.spans()
    config = traced.config(shared_memory=False)
    shell = TracedAsyncShell(config, tracer=traced.tracer())
    async with TracedAsyncPool(shell, config) as pool:
        await asyncio.gather(*(pool.put(f"aio{i}", b"v") for i in range(5)))
        await asyncio.gather(*(pool.remove(f"aio{i}") for i in range(5)))
    spans: list[ReadableSpan] = []
    async with asyncio.timeout(WAIT_S):
        while sum(span.name == "moonpool.master.commit" for span in spans) < 5:
            await asyncio.sleep(0.001)
            spans += traced.spans()
    puts = {span.context.span_id for span in spans if span.name == "moonpool.put"}
    assert len(puts) == 5
    for name in ("moonpool.master.reserve", "moonpool.transfer.put", "moonpool.master.commit"):
        assert {parent_of(span) for span in spans if span.name == name} == puts, name


def test_a_nodes_copies_are_told(traced: Traced, pool: TracedPool) -> None:
    traced.spans()
    pool.put("two", b"x" * 100, replicas=2)
    pool.put("moved", b"y" * 100)
    node = pool.match_prefix(["moved"]).nodes[0]
    try:
        spans: list[ReadableSpan] = []
        until = time.monotonic() + WAIT_S
        while not any(span.name == "moonpool.node.copy" for span in spans):
            assert time.monotonic() < until, "no copy was told"
            pool.drain(node)
            time.sleep(0.01)
            spans += traced.spans()
    finally:
        pool.drain(node, stop=True)
    copied = by_name(spans)["moonpool.node.copy"].attributes
    assert copied is not None
    assert copied["moonpool.source"] == node != copied["moonpool.node"]


def test_the_frame_is_the_same_but_for_one_more_field() -> None:
    """Who knows nothing of traces reads what a tracing client sends."""

    class Before(msgspec.Struct, array_like=True, frozen=True):
        version: int
        id: int
        deadline_ms: int
        body: m.ClientRequest

    asked = m.Exists(pack_keys([b"k"]))
    plain, carried = m.encode(asked, 7, 100), m.encode(asked, 7, 100, trace=b"00-1-2-01")
    assert msgspec.msgpack.encode(Before(m.PROTOCOL_VERSION, 7, 100, asked)) == plain
    assert msgspec.msgpack.decode(carried, type=Before).body == asked
    assert m.decode(plain).trace == b"" and m.decode(carried).trace == b"00-1-2-01"
    with pytest.raises(msgspec.MsgspecError):
        m.decode(msgspec.msgpack.encode([m.PROTOCOL_VERSION, 7, 100, asked, {"no": "trace"}]))


@pytest.mark.parametrize("parent", [b"", b"nonsense", b"\xff\xfe", b"00-" + b"0" * 32])
def test_nonsense_from_a_peer_is_no_parent(traced: Traced, parent: bytes) -> None:
    traced.spans()
    with traced.tracer().span("served", {}, parent=parent, serves=True):
        pass
    assert by_name(traced.spans())["served"].parent is None


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for build in (Tracer, lambda: open_provider("x")):
        with pytest.raises(MissingExtra, match=r"moonpool\[otel\]"):
            build()


def test_an_exporter_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(MissingExtra, match="'zipkin'"):
        open_provider("x")
    for name in ("console", "none"):
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", name)
        open_provider("x").shutdown()


def test_off_nobody_imports_it() -> None:
    program = (
        "import sys, moonpool\n"
        "from moonpool.pool import aio, connect, master, node\n"
        "with moonpool.Pool.local(memory='1MiB') as pool: pool.put('k', b'v')\n"
        "print([name for name in sys.modules if 'opentelemetry' in name or 'tracing' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == [b"[]"]
