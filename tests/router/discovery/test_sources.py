"""Workers found by DNS, etcd and Kubernetes, each before a real server or resolver."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from moonpool.core.errors import BadConfig, BadFrame, Unreachable
from moonpool.core.etcd import EtcdClient
from moonpool.router.base import Worker
from moonpool.router.brain import Brain
from moonpool.router.discovery.base import changes, parse_source
from moonpool.router.discovery.dns import DnsSource
from moonpool.router.discovery.etcd import EtcdSource
from moonpool.router.discovery.follower import Follower
from moonpool.router.discovery.kubernetes import KubernetesSource
from moonpool.router.service.desk import Desk
from moonpool.router.service.specs import WorkerSpec, parse_spec, parse_specs
from tests.router.rig import Got, TinyWorker, send_json


def spec(name: str, url: str = "http://h:1") -> WorkerSpec:
    return WorkerSpec(Worker(id=name, url=url))


def test_a_spec_with_everything() -> None:
    text = "http://h:1/p/,id=w,transfer=h:2,model=m,block=32,context=99,blocks=7,ranks=2,taint=a+b"
    found = parse_spec(text + ",zone=z,events=tcp://h:3,replay=tcp://h:4", "decode")
    assert found == WorkerSpec(
        Worker(
            id="w",
            url="http://h:1/p",
            role="decode",
            transfer="h:2",
            block_size=32,
            model="m",
            labels={"zone": "z"},
            taints=frozenset("ab"),
            ranks=2,
            context_tokens_max=99,
            kv_blocks_max=7,
        ),
        "tcp://h:3",
        "tcp://h:4",
    )


def test_several_specs() -> None:
    names = [s.worker.id for s in parse_specs(" http://a:1  http://b:2,zone=z ", "both")]
    assert names == ["a:1", "b:2"]


@pytest.mark.parametrize(
    "text",
    [
        *("ftp://h:1", "h:1", "http://", "http://h:99999", "http://h:1,zone", "http://h:1,=x"),
        *("http://h:1,block=x", "http://h:1,ranks=0", "http://h:1,transfer=nowhere"),
        *("http://h:1,block=-1", "http://h:1,events=h:5557", "http://h:1,replay=tcp://h"),
    ],
)
def test_specs_that_make_no_sense(text: str) -> None:
    with pytest.raises(BadConfig):
        parse_spec(text, "both")


def test_changes_between_two_looks() -> None:
    known = {"a": spec("a"), "b": spec("b"), "c": spec("c")}
    change = changes(known, [spec("a"), spec("b", "http://h:2"), spec("d")])
    assert change.gone == ["b", "c"]
    assert [s.worker.id for s in change.come] == ["b", "d"]


@pytest.mark.parametrize("text", ["dsn:a:1", "dns:", "dns:a", "etcd:h:1", "etcd:http://h:1", "x"])
def test_sources_that_make_no_sense(text: str) -> None:
    with pytest.raises(BadConfig):
        parse_source(text)


async def test_a_name_is_resolved() -> None:
    found = await DnsSource("localhost:8123,zone=z").look()
    assert "http://127.0.0.1:8123" in [s.worker.url for s in found]
    assert all(s.worker.labels == {"zone": "z"} for s in found)


async def test_a_name_that_is_nowhere() -> None:
    with pytest.raises(Unreachable):
        await DnsSource("nowhere.invalid:1").look()


def gateway(pairs: dict[str, str]) -> TinyWorker:
    """A server that answers as etcd's JSON gateway does to a range question."""

    def b64(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    async def answer(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        first, end = (base64.b64decode(got.json[k]).decode() for k in ("key", "range_end"))
        kvs = [{"key": b64(k), "value": b64(v)} for k, v in pairs.items() if first <= k < end]
        send_json(writer, 200, {"header": {}, "kvs": kvs, "count": str(len(kvs))})

    return TinyWorker("etcd", answer)


async def test_workers_out_of_etcd(etcd: str) -> None:
    with EtcdClient(etcd) as client:
        at = client.address.prefix
        lease = client.grant(60)
        client.put(f"{at}/a", b"http://a:1,zone=z")
        client.put(f"{at}/prefill/p", b"http://p:1,transfer=p:2", lease=lease)
        client.put(f"{at}X", b"http://other:1")
        source = EtcdSource(etcd)
        found = await source.look()
        assert [(s.worker.id, s.worker.role) for s in found] == [("a", "both"), ("p", "prefill")]
        client.revoke(lease)
        assert [s.worker.id for s in await source.look()] == ["a"]


async def test_etcd_that_talks_nonsense_or_is_away() -> None:
    server = gateway({"pool/a": "no worker"})
    await server.start()
    source = EtcdSource(f"{server.url}/pool")
    with pytest.raises(BadConfig):
        await source.look()

    async def nonsense(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        send_json(writer, 200, {"kvs": [{"key": "?"}]})

    server.behaviour = nonsense
    with pytest.raises(BadFrame):
        await source.look()
    server.kill()
    with pytest.raises(Unreachable):
        await source.look()


def pod(name: str, ip: str = "10.0.0.1", ready: str = "True", **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": {"app": "vllm"}, **more}
    return {
        "metadata": metadata,
        "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": ready}]},
    }


async def test_pods_with_a_label(tmp_path: Path) -> None:
    notes = {
        "moonpool.io/port": "9",
        "moonpool.io/role": "prefill",
        "moonpool.io/transfer-port": "7",
        "moonpool.io/events-port": "5",
        "other": "x",
    }
    pods = [
        pod("a", annotations=notes),
        pod("six", ip="fd00::1"),
        pod("not-ready", ready="False"),
        pod("ending", deletionTimestamp="now"),
        {"metadata": {"name": "no-status"}},
    ]

    async def answer(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        send_json(writer, 200, {"items": pods})

    server = TinyWorker("kubernetes", answer)
    await server.start()
    (tmp_path / "token").write_text("secret\n")
    source = KubernetesSource("serving/app=vllm", server.url, tmp_path)
    found = await source.look()
    assert server.asked[0].headers["authorization"] == "Bearer secret"
    assert server.asked[0].path == "/api/v1/namespaces/serving/pods?labelSelector=app%3Dvllm"
    first, six = found
    assert (first.worker.id, first.worker.url, first.worker.role) == (
        "a",
        "http://10.0.0.1:9",
        "prefill",
    )
    assert (first.worker.transfer, first.events) == ("10.0.0.1:7", "tcp://10.0.0.1:5")
    assert first.worker.labels == {"app": "vllm"}
    assert six.worker.url == "http://[fd00::1]:8000"
    pods[:] = [pod("bad", annotations={"moonpool.io/role": "boss"})]
    with pytest.raises(BadConfig, match="boss"):
        await source.look()
    server.kill()
    with pytest.raises(Unreachable):
        await source.look()


async def test_a_source_that_fails_changes_nothing() -> None:
    pairs = {"w/a": "http://127.0.0.1:1", "w/b": "http://127.0.0.1:2"}
    server = gateway(pairs)
    await server.start()
    desk = Desk(Brain())
    follower = Follower(desk, EtcdSource(f"{server.url}/w"), 1.0)
    await follower.look()
    assert sorted(desk.seats) == ["a", "b"]
    del pairs["w/b"]
    await follower.look()
    assert sorted(desk.seats) == ["a"]
    server.kill()
    await follower.look()
    assert sorted(desk.seats) == ["a"]


async def test_a_source_does_not_take_over_what_is_registered() -> None:
    server = gateway({"w/a": "http://127.0.0.1:1"})
    await server.start()
    desk = Desk(Brain())
    desk.seat(spec("a"), "static")
    await Follower(desk, EtcdSource(f"{server.url}/w"), 1.0).look()
    server.kill()
    assert desk.seats["a"].source == "static"
