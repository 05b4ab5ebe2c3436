"""Engines by name in a real etcd: found, found again after a restart, gone with their process."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from moonpool.bench.etcd_server import EtcdServers
from moonpool.core.errors import (
    BadConfig,
    BadFrame,
    BadInput,
    DeadlineExceeded,
    PeerRestarted,
    TransferError,
    Unreachable,
)
from moonpool.core.etcd import EtcdClient
from moonpool.transfer import Engine, EngineEntry, EtcdDirectory, OpState, Peer
from moonpool.transfer.directory import decode_entry, encode_entry
from tests.transfer.conftest import stamped
from tests.transfer.owner import KV_BYTES, KV_SEED, Owner, wait_until

NBYTES = 1 << 14

Named = Callable[..., Engine]


@pytest.fixture
def named(etcd: str, folder: str) -> Iterator[Named]:
    """Makes engines that are announced and offer "kv", of NBYTES."""
    engines = list[Engine]()

    def make(name: str, **options: Any) -> Engine:
        engine = Engine(dir=folder, etcd=etcd, name=name, **options)
        engines.append(engine)
        if name:
            engine.allocate(NBYTES, "kv").array[:] = stamped(NBYTES)
            engine.listen()
        return engine

    yield make
    for engine in engines:
        engine.close()


def moved(engine: Engine, peer: Peer, nbytes: int, seed: int) -> bool:
    """Reads all of "kv" and compares it."""
    mine = engine.allocate(nbytes)
    op = engine.read(mine, None, peer.segment("kv"), None)
    return op.wait() and op.result.ok and np.array_equal(mine.array, stamped(nbytes, seed))


def test_found_by_name(named: Named) -> None:
    owner, other, engine = named("decode-0"), named("decode-1"), named("")
    other.allocate(64, "more")
    other.listen("127.0.0.2")
    directory = engine.directory
    assert directory is not None
    found = directory.find("decode-0")
    assert found == EngineEntry(
        name="decode-0", epoch=owner.epoch, addresses=owner.addresses, segments={"kv": NBYTES}
    )
    assert [one.name for one in directory.entries()] == ["decode-0", "decode-1"]
    assert directory.offering("kv") == ["decode-0", "decode-1"]
    assert directory.offering("more") == ["decode-1"]
    peer = engine.connect("decode-0")
    assert (peer.name, peer.address, peer.epoch) == ("decode-0", owner.address, owner.epoch)
    assert moved(engine, peer, NBYTES, 1)
    owner.close()
    assert directory.find("decode-0") is None and directory.find("decode-1") is not None


def test_a_name_that_nobody_has(named: Named) -> None:
    with pytest.raises(DeadlineExceeded, match="'decode-7' was not reached within 0.2 s: nobody"):
        named("").connect("decode-7", timeout=0.2)


@pytest.mark.faults
def test_a_name_leads_to_the_next_life(
    named: Named, etcd: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed without a word, and back on another port: its entry is the old one at first."""
    monkeypatch.setenv("OWNER_ETCD", etcd)
    monkeypatch.setenv("OWNER_NAME", "decode-0")
    engine = named("")
    with Owner(folder) as owner:
        peer = engine.connect("decode-0")
        old = peer.segment("kv")
        assert moved(engine, peer, KV_BYTES, KV_SEED)
        owner.kill()
        with Owner(folder) as again:
            assert again.address != owner.address
            mine = engine.allocate(KV_BYTES)
            late = engine.read(mine, None, old, None)
            assert late.wait()
            # A typed error, and not the memory of the process that is there now.
            assert late.result.state is OpState.FAILED and isinstance(late.error, PeerRestarted)
            assert not mine.array.any()
            assert (peer.address, peer.epoch) == (again.address, again.epoch)
            assert moved(engine, peer, KV_BYTES, KV_SEED)
            again.kill()
            directory = engine.directory
            assert directory is not None
            # Its lease takes the entry of the dead away.
            wait_until(lambda: directory.find("decode-0") is None)


@pytest.mark.faults
def test_a_stopped_engine_is_left_for_the_one_that_has_its_name(
    named: Named, etcd: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWNER_ETCD", etcd)
    monkeypatch.setenv("OWNER_NAME", "decode-0")
    engine = named("", heartbeat_ms=50, hang_ms=300)
    with Owner(folder) as owner:
        peer = engine.connect("decode-0")
        owner.stop()
        wait_until(lambda: bool(peer.hung))
        heir = named("decode-0")
        peer.refresh()
        assert (peer.address, peer.alive) == (heir.address, True)
        assert moved(engine, peer, NBYTES, 1)


def test_an_entry_that_names_another_process(named: Named) -> None:
    owner, engine = named("decode-0"), named("")
    directory = engine.directory
    assert directory is not None
    wrong = EngineEntry(name="decode-9", epoch=owner.epoch + 2, addresses=[owner.address])
    with directory.client(5) as client:
        client.put(directory.key("decode-9"), encode_entry(wrong))
        with pytest.raises(DeadlineExceeded, match="another process than engine 'decode-9'"):
            engine.connect("decode-9", timeout=0.2)
        client.put(directory.key("decode-9"), b"[]")
        with pytest.raises(BadFrame):
            directory.find("decode-9")
        with pytest.raises(DeadlineExceeded, match="something else than an engine"):
            engine.connect("decode-9", timeout=0.2)


def test_a_name_taken_over(named: Named) -> None:
    first, second = named("decode-0", name_ttl_s=1), named("decode-0", name_ttl_s=1)
    directory = second.directory
    assert directory is not None and first._announcer is not None
    announcer = first._announcer
    wait_until(lambda: "another engine is announced" in announcer.error)
    first.close()
    found = directory.find("decode-0")
    assert found is not None and found.epoch == second.epoch


def test_an_entry_that_was_lost_is_written_again(named: Named) -> None:
    owner = named("decode-0", name_ttl_s=1)
    directory = owner.directory
    assert directory is not None
    with directory.client(5) as client:
        (pair,) = client.range(directory.key("decode-0"))
        client.revoke(pair.lease)
        wait_until(lambda: directory.find("decode-0") is not None)
        owner.allocate(64, "late")
        wait_until(lambda: directory.offering("late") == ["decode-0"])


@pytest.mark.faults
def test_peers_do_without_etcd(folder: str) -> None:
    with EtcdServers() as servers:
        where = servers.url("engines")
        options: dict[str, Any] = {"dir": folder, "etcd": where}
        with (
            Engine(**options, name="decode-0", name_ttl_s=1) as owner,
            Engine(**options) as engine,
        ):
            owner.allocate(NBYTES, "kv").array[:] = stamped(NBYTES)
            owner.listen()
            peer = engine.connect("decode-0")
            servers.kill(0)
            assert moved(engine, peer, NBYTES, 1)
            with pytest.raises(TransferError):
                engine.connect("decode-0", timeout=0.3)
            with Engine(**options, name="decode-1") as late, pytest.raises(Unreachable):
                late.listen()
            servers.restart(0)
            until_s = time.monotonic() + 30
            while not _found(owner.directory, "decode-0"):
                assert time.monotonic() < until_s
            assert moved(engine, engine.connect("decode-0", timeout=30), NBYTES, 1)


def _found(directory: EtcdDirectory | None, name: str) -> bool:
    assert directory is not None
    try:
        return directory.find(name, 1.0) is not None
    except TransferError:
        return False


def test_what_is_no_name(named: Named, etcd: str) -> None:
    for name in ("a:b", "a/b", "", "a b", "x" * 129, "a\n"):
        with pytest.raises(BadConfig if not name else BadInput):
            engine = Engine(etcd=etcd if name else "", name=name or "decode-0")
            engine.close()
    with Engine() as engine, pytest.raises(BadConfig, match="host:port"):
        engine.connect("decode-0")
    with pytest.raises(BadConfig, match="etcd://"):
        Engine(etcd="127.0.0.1:2379")
    with pytest.raises(BadInput, match="names no engine"):
        named("").connect("a b")


def test_entries_of_others() -> None:
    entry = EngineEntry(name="a", epoch=1, addresses=["127.0.0.1:4000"])
    assert decode_entry(encode_entry(entry)) == entry
    for raw in (b"", b"{}", b'{"name":"a","epoch":1,"addresses":[]}'):
        with pytest.raises(BadFrame):
            decode_entry(raw)
    with pytest.raises(BadFrame):
        decode_entry(b'{"name":"a","epoch":1,"addresses":["nowhere"]}')


def test_one_client_reads_what_an_engine_wrote(named: Named, etcd: str) -> None:
    """The key's form is a promise to other programs."""
    owner = named("decode-0")
    with EtcdClient(etcd) as client:
        prefix = client.address.prefix
        (pair,) = client.range(f"{prefix}/engines/decode-0")
    assert decode_entry(pair.value).epoch == owner.epoch and pair.lease
