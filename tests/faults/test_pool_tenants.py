"""P8 over a pool of real processes: what a tenant reaches by asking, by guessing and by mapping."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from moonpool._core import Endpoint, RefusedError
from moonpool.core.errors import QuotaExceeded, Refused
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.core.status import BlockStatus
from moonpool.core.tenants import scope_of, tenant_number
from moonpool.pool.cluster import Cluster
from moonpool.pool.pool import Pool
from moonpool.pool.port_tcp import TcpPort
from moonpool.pool.ports import CLAIM_DTYPE, AbortCall, PutCall, ReadCall, ReadRangeCall
from moonpool.pool.results import PutStatus
from tests.faults.pool_rig import HEARTBEAT_MS, MIB, ROOT, Rig, counter, eventually, stamp
from tests.faults.tenant_rig import CLUSTER, TOKENS, tenant_pool, tenants_file, visitor

pytestmark = pytest.mark.faults
STAMP_A, STAMP_B = b"<<stamp of tenant a>>", b"<<stamp of tenant b>>"


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with (
        tempfile.TemporaryDirectory(prefix="moonpool-faults-", dir="/dev/shm") as folder,
        tenant_pool(Path(folder), lines={"b": "quota_bytes = '1MiB'\nborrow = false"}) as rig,
    ):
        yield rig


def test_the_same_keys_and_different_objects(rig: Rig) -> None:
    with visitor(rig, "a") as a, visitor(rig, "b") as b, visitor(rig, "") as operator:
        for pool, name in ((a, "a"), (b, "b"), (operator, "o")):
            assert pool.put("k", stamp(name, 3000)).status is PutStatus.STORED
        for pool, name in ((a, "a"), (b, "b"), (operator, "o")):
            assert pool.get("k") == stamp(name, 3000)
            assert [one.key for one in pool.list()] == [b"k"]
        assert a.put_many(["p", "q"], [b"1", b"2" * 300_000], parent="k")[1].ok
        assert b.match_prefix(["k", "p"]).count == 1
        assert a.remove_prefix("p") == 1
        clear(a)
        assert b.get("k") == stamp("b", 3000) and a.get("k") is None
        operator.remove(["k"])
        b.remove(["k"])


def test_views_sessions_and_ranges_of_a_tenant(rig: Rig) -> None:
    """All ways to read and write, though its segment is not mapped."""
    value = stamp("whole", 100_000)
    with visitor(rig, "a") as a:
        assert a.put("whole", value).ok
        with a.view("whole") as view:
            assert view is not None and bytes(view) == value
        with a.write_session(["w"], [8]) as session:
            session.write(0, [b"12345678"])
        assert a.get("w") == b"12345678"
        out = bytearray(len(value))
        assert a.get_into("whole", out) == len(value) and bytes(out) == value
        assert a.remove(["whole", "w"])


def test_a_quota_is_an_error_with_a_name(rig: Rig) -> None:
    with visitor(rig, "b", timeout_s=5) as b:
        with pytest.raises(QuotaExceeded):
            b.put("big", bytes(2 * MIB))
        assert b.put("fits", bytes(MIB // 2)).ok
        b.remove(["fits"])


def test_what_only_the_operator_may(rig: Rig) -> None:
    with visitor(rig, "a") as a, visitor(rig, "") as operator:
        with pytest.raises(Refused):
            a.drain("n0")
        assert set(tenants_of(a)) == {"a"}
        assert set(tenants_of(operator)) == {"default", "a", "b"}


def clear(pool: Pool) -> None:
    pool.remove([one.key for one in pool.list()])


def tcp_port(rig: Rig, name: str) -> TcpPort:
    """A hostile client's own way to the node: its token, and nothing of ours in between."""
    endpoint = Endpoint(secrets.randbits(63), TOKENS[name].encode())
    address = rig.nodes[0].ready["tcp"]
    with visitor(rig, "") as operator:
        operator.put("way", b"x")
        operator.remove(["way"])
        (told,) = operator._shell.state.endpoints.values()
    return TcpPort(lambda timeout_s: endpoint.connect(address, 2000), told.incarnation, "n0")


def test_guessed_slots_give_nothing_of_others(rig: Rig) -> None:
    """Slots and generations are small numbers: all of them are asked for, with A's token."""
    with visitor(rig, "b") as b, visitor(rig, "a") as a, visitor(rig, "") as operator:
        for i in range(4):
            assert b.put(f"b{i}", STAMP_B * 40).ok and a.put(f"a{i}", STAMP_A * 40).ok
            assert operator.put(f"o{i}", STAMP_B * 40).ok
        port = tcp_port(rig, "a")
        slots = np.repeat(np.arange(2048, dtype=np.uint32), 24)
        generations = np.tile(np.arange(1, 25, dtype=np.uint64), 2048)
        room = [bytearray(len(STAMP_A) * 40) for _ in slots]
        got = port.start(ReadCall(slots, generations, room, True), 30)()
        assert (got.status == BlockStatus.OK).sum() == 4  # its own
        assert (got.status == BlockStatus.REFUSED).sum() >= 8
        assert not any(STAMP_B in one for one in room)
        assert sum(STAMP_A in one for one in room) == 4
        few = np.flatnonzero(got.status == BlockStatus.REFUSED)
        offsets = np.zeros(few.size, np.uint64)
        ranges = port.start(
            ReadRangeCall(slots[few], generations[few], offsets, [bytearray(8) for _ in few]), 30
        )()
        assert (ranges.status == BlockStatus.REFUSED).all()
        port.close()
        assert b.get("b0") == STAMP_B * 40
        for pool in (a, b, operator):
            clear(pool)


def test_a_claim_is_its_tenants_whatever_it_says(rig: Rig) -> None:
    """A writes the scope, the tenant and a version of B into a claim, seals it, and waits for the
    next master: that one takes it for a key of A, or for nothing."""
    number = tenant_number("b")
    key = scope_of(number) + b"forged"
    record = np.zeros(1, CLAIM_DTYPE)
    record[0] = (len(STAMP_A), 2**61, 1, 0, number, len(key), 0, 1, 0, 0, 0)
    port = tcp_port(rig, "a")
    with visitor(rig, "") as operator:
        term: Any = operator.stat()["term"]
    done = port.start(PutCall(record, key, term, [STAMP_A], len(STAMP_A)), 10)()
    assert done.status.tolist() == [BlockStatus.OK]
    port.close()
    with visitor(rig, "b") as b:
        assert b.get("forged") is None
    rig.kill(rig.master)
    rig.restart()
    with visitor(rig, "b") as b, visitor(rig, "a") as a:
        assert b.get("forged") is None
        assert list(b.list()) == []
        clear(a)


def test_a_claim_of_another_is_not_ended(rig: Rig) -> None:
    """Every claim there may be is aborted with A's token, while the operator has one open."""
    with visitor(rig, "") as operator, operator.write_session(["open"], [8]) as session:
        session.write(0, [b"12345678"])
        port = tcp_port(rig, "a")
        slots = np.repeat(np.arange(512, dtype=np.uint32), 16)
        generations = np.tile(np.arange(1, 17, dtype=np.uint64), 512)
        assert len(port.start(AbortCall(slots, generations), 30)().status) == slots.size
        port.close()
    with visitor(rig, "") as operator:
        assert operator.get("open") == b"12345678"
        operator.remove(["open"])


def test_a_token_of_nobody_opens_nothing(rig: Rig) -> None:
    endpoint = Endpoint(1, b"a token that nobody has")
    with pytest.raises(RefusedError, match="wrong token"):
        endpoint.connect(rig.nodes[0].ready["tcp"], 2000)


def test_one_to_three_of_bytes_through_a_real_pool(tmp_path: Path) -> None:
    """Both tenants write as much as they are let, each with eight threads; counted are bytes and
    puts, until so many bytes have been admitted."""
    size, goal = 64 << 10, 24 * MIB
    lines = {"a": "weight = 1", "b": "weight = 3"}
    with (
        tempfile.TemporaryDirectory(prefix="moonpool-faults-", dir="/dev/shm") as folder,
        tenant_pool(Path(folder), lines=lines, memory=64 * MIB, inflight_bytes_max=2 * size) as rig,
        visitor(rig, "a", timeout_s=30) as a,
        visitor(rig, "b", timeout_s=30) as b,
        visitor(rig, "") as operator,
    ):
        over = threading.Event()
        value = bytes(size)

        def write(pool: Pool, name: str, number: int) -> None:
            at = 0
            while not over.is_set():
                pool.put(f"{name}/{number}/{at % 8}", value, replace=True)
                at += 1

        threads = [
            threading.Thread(target=write, args=(pool, name, number))
            for number in range(8)
            for pool, name in ((a, "a"), (b, "b"))
        ]
        for thread in threads:
            thread.start()
        start = counted(operator)
        while not all(objects for _, objects in start.values()):  # all threads are at work
            start = counted(operator)
        now, first = start, sum(size for size, _ in start.values())
        while sum(size for size, _ in now.values()) < first + goal:
            now = counted(operator)
        over.set()
        for thread in threads:
            thread.join()
        given = {name: np.subtract(now[name], start[name]).tolist() for name in now}
        for few, many in zip(given["a"], given["b"], strict=True):
            assert many / few == pytest.approx(3, rel=0.1), given


def tenants_of(pool: Pool) -> dict[str, Any]:
    tenants: Any = pool.stat()["tenants"]
    return dict(tenants)


def counted(operator: Pool) -> dict[str, tuple[int, int]]:
    """Bytes and objects that each was admitted."""
    told = tenants_of(operator)
    return {
        name: (told[name]["admitted_bytes"], told[name]["admitted_objects"]) for name in ("a", "b")
    }


# Mapped memory.


@pytest.mark.skipif(os.geteuid() != 0, reason="users of their own can be had by root only")
def test_a_hostile_client_that_maps_all_it_can_finds_no_other_stamp() -> None:
    """Each tenant has a node of its own user, with a disk below its memory, and there is one for
    all. As A's user, with A's token: whatever the pool tells of, whatever lies in /dev/shm (the
    disks, too), whatever other processes have open, is mapped and searched."""
    with tempfile.TemporaryDirectory(prefix="moonpool-faults-", dir="/dev/shm") as name:
        folder = Path(name)
        folder.chmod(0o755)
        path = tenants_file(folder)
        os.chmod(path, 0o644)
        users = {"a": 61001, "b": 61002, "": 61003}
        cluster = Cluster(
            MasterConfig(
                port=0,
                token=CLUSTER,
                tenants=path,
                node_lease_ms=1000,
                grace_ms=1200,
                offload="write",
            ),
            [],
        )
        nodes = []
        try:
            cluster.start()
            for tenant, uid in users.items():
                own = folder / f"node-{tenant or 'shared'}"
                own.mkdir(mode=0o700)
                os.chown(own, uid, uid)
                nodes.append(_node_of(cluster.address, tenant, uid, own, path))
            for tenant in ("a", "b"):
                ran = _as_user(users[tenant], "fill", cluster.address, tenant)
                assert ran.split() == ["filled", "16"], ran
            with visitor(cluster, "") as operator:
                eventually(lambda: counter(operator, "tier_objects") == 32, "all are on disk, too")
            found = _as_user(users["a"], "search", cluster.address, "a").split()
            assert found[0] == "searched"
            mapped, own_stamps, others = map(int, found[1:])
            assert mapped > 0 and own_stamps > 0, found  # it did look, and knows what to look for
            assert others == 0, found
        finally:
            for node in nodes:
                node.terminate()
                node.wait()
                assert node.stdout is not None
                node.stdout.close()
            cluster.stop()


def _node_of(
    address: str, tenant: str, uid: int, folder: Path, tenants: str
) -> subprocess.Popen[str]:
    config = NodeConfig(
        master=address,
        name=f"node-{tenant or 'shared'}",
        memory=4 * MIB,
        headroom=4 * MIB,
        dir=str(folder),
        disk=str(folder) if tenant else "",
        disk_size=64 * MIB,
        token=CLUSTER,
        tenants=tenants,
        tenant=tenant,
        heartbeat_ms=HEARTBEAT_MS,
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.tenant_roles", str(uid), "node", str(os.getpid())],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process.stdin as stdin:
        stdin.write(msgspec.json.encode(msgspec.structs.asdict(config)).decode() + "\n")
    assert "ready" in process.stdout.readline()
    return process


def _as_user(uid: int, role: str, address: str, tenant: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.faults.tenant_roles", str(uid), role, address, tenant],
        cwd=ROOT,
        env={**os.environ, "MOONPOOL_TOKEN": TOKENS[tenant]},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
