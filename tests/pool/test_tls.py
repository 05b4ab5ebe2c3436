"""TLS at both doors: who comes in, who does not, and in which words."""

from __future__ import annotations

import asyncio
import datetime
import re
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
import trustme

from moonpool.core.admin_section import AdminConfig
from moonpool.core.clock import Deadline, SystemClock
from moonpool.core.errors import BadConfig, MoonpoolError, Refused, TransferError, Unreachable
from moonpool.core.sections import ClientConfig, MasterConfig, NodeConfig
from moonpool.core.stream import FrameStream
from moonpool.core.tls import client_context, server_context
from moonpool.core.wire import Kind
from moonpool.dashboard.metrics import hits_by_tier
from moonpool.dashboard.process import admin_child
from moonpool.pool import messages as m
from moonpool.pool.aio import AsyncPool
from moonpool.pool.aio_shell import AsyncShell
from moonpool.pool.cluster import Cluster, local_directory
from moonpool.pool.link import BlockingLink, encrypted
from moonpool.pool.openers import PortOpener
from moonpool.pool.pool import Pool
from moonpool.pool.port_tier import TierPort
from moonpool.pool.ports import ReadCall, Status
from moonpool.pool.results import Miss
from moonpool.pool.shell import BlockingShell
from tests.faults.pool_rig import counter, eventually

TOKEN = "a long and random text of the cluster"
MIB = 1 << 20


class Papers:
    """Certificates as files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = trustme.CA()
        self.other_ca = trustme.CA()
        self.ours = self._authority("ca", self.ca)
        self.theirs = self._authority("other", self.other_ca)

    def _authority(self, name: str, ca: trustme.CA) -> str:
        path = self.folder / f"{name}.pem"
        ca.cert_pem.write_to_path(path)
        return str(path)

    def issued(self, name: str, ca: trustme.CA | None = None, **how: Any) -> dict[str, Any]:
        cert = (ca or self.ca).issue_cert("127.0.0.1", "localhost", **how)
        chain, key = self.folder / f"{name}.cert", self.folder / f"{name}.key"
        chain.write_bytes(b"".join(one.bytes() for one in cert.cert_chain_pems))
        cert.private_key_pem.write_to_path(key)
        return {"tls_cert": str(chain), "tls_key": str(key)}


@pytest.fixture(scope="module")
def papers() -> Iterator[Papers]:
    with tempfile.TemporaryDirectory() as folder:
        yield Papers(Path(folder))


class Doors:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.master = cluster.address
        self.node: str = cluster.nodes[0].ready["tcp"]


@contextmanager
def tls_pool(disk_size: int = 0, **tls: Any) -> Iterator[Doors]:
    with local_directory("tls") as folder:
        node = NodeConfig(
            name="n0", memory=8 * MIB, headroom=8 * MIB, dir=str(folder), token=TOKEN, **tls
        )
        if disk_size:
            disk = str(folder / "disk")
            node = msgspec.structs.replace(node, disk=disk, disk_size=disk_size)
        master = MasterConfig(port=0, token=TOKEN, grace_ms=3200, offload="write", **tls)
        with Cluster(master, [node]) as cluster:
            yield Doors(cluster)


@pytest.fixture(scope="module")
def mutual(papers: Papers) -> Iterator[Doors]:
    with tls_pool(**papers.issued("pool"), tls_ca=papers.ours, tls_mutual=True) as doors:
        yield doors


def client(doors: Doors, **how: Any) -> ClientConfig:
    given: dict[str, Any] = {"token": TOKEN, "timeout_ms": 5000, "shared_memory": False, **how}
    return ClientConfig(master=doors.master, **given)


@contextmanager
def opened(config: ClientConfig) -> Iterator[Pool]:
    shell = BlockingShell(config)
    try:
        shell.connect(5)
        yield Pool(shell, config)
    finally:
        shell.close()


def knock(doors: Doors, config: ClientConfig) -> list[MoonpoolError | OSError | None]:
    """What master and node say, in that order; None: come in."""
    answers: list[MoonpoolError | OSError | None] = []
    tls = client_context(config)
    deadline = Deadline.after(SystemClock().monotonic(), 10)
    try:
        link = BlockingLink(doors.master, config.token, "t", deadline, tls=tls)
        link.request(m.Stat(), deadline)
        link.close()
        answers.append(None)
    except MoonpoolError as error:
        answers.append(error)
    opener = PortOpener(config.token, False, tls)
    try:
        opener.connect(doors.node, 5).close()
        answers.append(None)
    except OSError as error:
        answers.append(error)
    finally:
        opener.close()
    return answers


def test_everything_works_through_it(mutual: Doors, papers: Papers) -> None:
    config = client(mutual, tls_ca=papers.ours, **papers.issued("client"))
    value = bytes(range(256)) * 8192  # 2 MiB: many records, both ways
    with opened(config) as pool:
        assert pool.put("k", value).ok
        assert pool.get("k") == value
        results = pool.put_many(
            [f"m{i}" for i in range(64)], [bytes([i]) * 1000 for i in range(64)]
        )
        assert all(one.ok for one in results)
        got = pool.get_many([f"m{i}" for i in range(64)])
        assert [hit.data for hit in got] == [bytes([i]) * 1000 for i in range(64)]  # type: ignore[union-attr]
        threads = [threading.Thread(target=lambda: pool.get("k")) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_what_lies_on_disk_only_is_read_through_it(papers: Papers) -> None:
    """A tier has a door of its own."""
    values = {f"d{i}": bytes([i]) * (MIB - 4096) for i in range(20)}  # memory holds eight
    mine = {"tls_ca": papers.ours, **papers.issued("disk")}
    with tls_pool(64 * MIB, tls_mutual=True, **mine) as doors:
        with opened(client(doors, **mine)) as pool:
            for key, value in values.items():
                assert pool.put(key, value).ok
                eventually(lambda: counter(pool, "offload_queue") == 0, "the disk keeps up")
            eventually(lambda: counter(pool, "tier_objects") == len(values), "all are on disk")
            assert all(pool.get(key) == value for key, value in values.items())
            part = pool.get_range("d0", 5000, 70_000)
            assert not isinstance(part, Miss) and part == values["d0"][5000:75_000]
            pool.flush()
            assert hits_by_tier(pool.stat())["disk"] >= 12
            door = tier_door(pool)
        for how, said in (
            (mine, Status.MOVED),  # it is told that nothing lies there
            ({}, Status.UNREACHABLE),
            ({"tls_ca": papers.ours}, Status.UNREACHABLE),
            ({**mine, "tls_ca": papers.theirs}, Status.UNREACHABLE),
        ):
            tls = client_context(client(doors, **how))
            port = TierPort(door, TOKEN, b"i" * 16, "n0", tls=tls)
            call = ReadCall(np.zeros(1, np.uint32), np.ones(1, np.uint64), [bytearray(8)], True)
            assert port.start(call, 5.0)().status.tolist() == [said], how
            port.close()


def tier_door(pool: Pool) -> str:
    endpoints = pool._shell.state.endpoints.values()
    return next(one.tcp for one in endpoints if one.medium == "disk")


def test_so_it_does_for_asyncio(mutual: Doors, papers: Papers) -> None:
    config = client(mutual, tls_ca=papers.ours, **papers.issued("async"))

    async def use() -> bytes | None:
        shell = AsyncShell(config)
        try:
            await shell.connect(5)
            pool = AsyncPool(shell, config)
            await pool.put("aio", b"x" * 100_000)
            return await pool.get("aio")
        finally:
            await shell.close()

    assert asyncio.run(use()) == b"x" * 100_000


def test_nothing_travels_in_the_clear(mutual: Doors) -> None:
    """Both doors answer a plain hello with nothing of ours."""
    for address in (mutual.master, mutual.node):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(b"\0" * 64)
            said = b""
            while part := sock.recv(4096):
                said += part
            assert b"moonpool" not in said.lower() and len(said) < 16  # an alert at most


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("wrong token", "token"),
        ("wrong authority", "authorities in tls_ca"),
        ("no certificate", "certificate of ours"),
        ("certificate of another authority", "certificate of ours"),
        ("expired certificate", "certificate of ours"),
    ],
)
def test_who_stays_outside(mutual: Doors, papers: Papers, case: str, said: str) -> None:
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    mine = papers.issued("mine")
    how: dict[str, Any] = {
        "wrong token": {"token": "wrong", "tls_ca": papers.ours, **mine},
        "wrong authority": {"tls_ca": papers.theirs, **mine},
        "no certificate": {"tls_ca": papers.ours},
        "certificate of another authority": {
            "tls_ca": papers.ours,
            **papers.issued("foreign", papers.other_ca),
        },
        "expired certificate": {
            "tls_ca": papers.ours,
            **papers.issued(
                "old", not_before=yesterday - datetime.timedelta(days=9), not_after=yesterday
            ),
        },
    }[case]
    master, node = knock(mutual, client(mutual, **how))
    assert isinstance(master, Refused if "token" in case or "wrong" in case else TransferError)
    assert re.search(said, str(master)), master
    assert node is not None


def test_a_plain_client_is_told_nothing_and_gets_nothing(mutual: Doors) -> None:
    master, node = knock(mutual, client(mutual))
    assert isinstance(master, TransferError) and node is not None


def test_a_server_with_an_expired_certificate(papers: Papers) -> None:
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    old = papers.issued(
        "expired", not_before=yesterday - datetime.timedelta(days=9), not_after=yesterday
    )
    context = server_context(MasterConfig(port=0, **old))
    assert context is not None
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_greet, args=(listening, context))
        thread.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        deadline = Deadline.after(SystemClock().monotonic(), 10)
        tls = client_context(ClientConfig(tls_ca=papers.ours))
        with pytest.raises(Refused, match="its certificate has expired"):
            BlockingLink(address, TOKEN, "t", deadline, tls=tls)
        thread.join()


def _greet(listening: socket.socket, context: Any, reset: bool = False) -> None:
    sock, _ = listening.accept()
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    try:
        context.wrap_socket(sock, server_side=True).close()
    except OSError:
        sock.close()


def test_a_server_that_ends_without_a_word_is_unreachable_not_refused(papers: Papers) -> None:
    """Whoever is refused does not try again: a master that starts anew must not look like that."""
    context = server_context(MasterConfig(port=0, **papers.issued("mute")))
    assert context is not None
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_greet, args=(listening, context), kwargs={"reset": True})
        thread.start()
        tls = client_context(ClientConfig(tls_ca=papers.ours))
        assert tls is not None
        sock = socket.create_connection(listening.getsockname(), timeout=10)
        stream = FrameStream(encrypted(sock, tls, "127.0.0.1", "it"))
        thread.join()
    deadline = Deadline.after(SystemClock().monotonic(), 10)
    with pytest.raises(Unreachable):
        while True:  # what was sent before its end came here is nobody's
            stream.send(Kind.HELLO, b"x", deadline)


def test_the_admin_service_speaks_it_too(mutual: Doors, papers: Papers) -> None:
    mine = papers.issued("admin")
    config = AdminConfig(
        master=mutual.master, token=TOKEN, port=0, tls_ca=papers.ours, tls_mutual=True, **mine
    )
    with admin_child(config) as child:
        url = child.ready["url"]
        assert url.startswith("https://")
        stranger = client_context(client(mutual, tls_ca=papers.ours))
        assert stranger is not None
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{url}/health", verify=stranger)
        known = client_context(client(mutual, tls_ca=papers.ours, **mine))
        assert known is not None
        assert httpx.get(f"{url}/health", verify=known).status_code == 200
        assert httpx.get(f"{url}/v1/stat", verify=known).status_code == 401
        page = httpx.get(
            f"{url}/metrics", verify=known, headers={"Authorization": f"Bearer {TOKEN}"}
        )
        assert 'moonpool_tenant_committed_bytes{tenant="default"}' in page.text


def test_tls_is_asked_of_a_pool_that_has_none(papers: Papers) -> None:
    with local_directory("plain") as folder:
        node = NodeConfig(name="n0", memory=8 * MIB, headroom=8 * MIB, dir=str(folder), token=TOKEN)
        with Cluster(MasterConfig(port=0, token=TOKEN), [node]) as cluster:
            doors = Doors(cluster)
            master, answer = knock(doors, client(doors, tls_ca=papers.ours))
            assert isinstance(master, TransferError) and answer is not None


def test_a_name_that_the_certificate_does_not_have(mutual: Doors, papers: Papers) -> None:
    named = trustme.CA()
    cert = named.issue_cert("elsewhere.example")
    chain, key = papers.folder / "elsewhere.cert", papers.folder / "elsewhere.key"
    chain.write_bytes(b"".join(one.bytes() for one in cert.cert_chain_pems))
    cert.private_key_pem.write_to_path(key)
    context = server_context(MasterConfig(port=0, tls_cert=str(chain), tls_key=str(key)))
    authority = papers.folder / "named.pem"
    named.cert_pem.write_to_path(authority)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_greet, args=(listening, context))
        thread.start()
        deadline = Deadline.after(SystemClock().monotonic(), 10)
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        tls = client_context(ClientConfig(tls_ca=str(authority)))
        with pytest.raises(Refused, match="another host"):
            BlockingLink(address, TOKEN, "t", deadline, tls=tls)
        thread.join()


def test_settings_that_do_not_fit_together(papers: Papers) -> None:
    whole = papers.issued("half")
    with pytest.raises(BadConfig, match="belong together"):
        MasterConfig(tls_cert=whole["tls_cert"])
    with pytest.raises(BadConfig, match="tls_ca says whose"):
        MasterConfig(**whole, tls_mutual=True)
    config = MasterConfig(tls_cert=papers.ours, tls_key=papers.ours)
    with pytest.raises(BadConfig, match="cannot be used"):
        server_context(config)
    missing = msgspec.structs.replace(config, tls_cert="/nowhere", tls_key="/nowhere")
    with pytest.raises(BadConfig, match="cannot be used"):
        server_context(missing)
