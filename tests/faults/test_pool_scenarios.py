"""What users of other pools reported, tried on ours as they met it (docs/scenarios.md)."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import moonpool
from moonpool.core.errors import MoonpoolError
from moonpool.core.sections import MasterConfig
from moonpool.pool.cluster import Cluster
from moonpool.pool.pool import Pool
from tests.faults.pool_rig import (
    MIB,
    Rig,
    await_usage,
    counter,
    eventually,
    running,
    seed,
    stamp,
)

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(nodes=1, memory=16 * MIB) as rig:
        yield rig


def test_pages_of_any_shape_come_back_from_every_tier() -> None:
    """R07: pages leave memory for disk and an object store, and return shuffled into a cache whose
    memory has another order."""
    torch = pytest.importorskip("torch")
    from moonpool.cache import HeadsLayout, PagePool

    draw = seed()
    torch.manual_seed(draw.randrange(1 << 32))
    with running(nodes=1, memory=4 * MIB, disk_size=8 * MIB, remote=True, offload="write") as rig:
        pool = rig.connect()
        wanted: list[tuple[str, PagePool, PagePool, int]] = []
        for shape in range(6):
            common: dict[str, Any] = {
                "layers": draw.randint(1, 4),
                "kv_heads": draw.randint(1, 4),
                "head_dim": 2 * draw.randint(1, 16),
                "page_size": draw.randint(1, 256),
                "dtype": "bfloat16",
            }
            pages = max(2, (2 * MIB) // HeadsLayout(**common).bytes_per_page)
            pages = min(pages, 60)
            writer = PagePool(HeadsLayout(**common), pages)
            reader = PagePool(HeadsLayout(**common, page_first=True), pages)
            writer.storage.copy_(torch.randn(writer.storage.shape))
            for page in range(pages):
                key = f"shape{shape}/page{page}"
                assert pool.put(key, b"".join(writer.page_views(page))).ok
                eventually(lambda: counter(pool, "offload_queue") < 16, "the tiers keep up")
                wanted.append((key, writer, reader, page))
        draw.shuffle(wanted)
        for key, _, reader, page in wanted:
            data = pool.get(key)
            assert data is not None, key
            for view in reader.page_views(page):
                view[:] = data[: view.nbytes]
                data = data[view.nbytes :]
        for key, writer, reader, page in wanted:
            for layer in range(writer.layout.layers):
                for part in writer.layout.parts:
                    here, there = writer.part(layer, part)[page], reader.part(layer, part)[page]
                    assert torch.equal(here, there), key
        assert counter(pool, "tier_reads") > 0 and counter(pool, "evicted_objects") == 0


def test_pins_of_lookups_that_fail_and_of_closes_that_come_twice_end(rig: Rig) -> None:
    """R28: a hundred readers of one prefix, a third given up in the middle, some closed twice."""
    draw = seed()
    pool = rig.connect()
    keys = [f"shared/{i}" for i in range(4)]
    pool.put_many(keys, [stamp(key, 50_000) for key in keys], parents="chain")
    plans = [(draw.random() < 0.3, draw.random() < 0.1) for _ in range(100)]

    def look(gives_up: bool, twice: bool) -> None:
        views = []
        for number, key in enumerate(keys):
            if gives_up and number == 2:
                break
            view = pool.view(key)
            assert view.data is not None and bytes(view.data) == stamp(key, 50_000)
            views.append(view)
        for view in views:
            view.close()
            if twice:
                view.close()

    threads = [threading.Thread(target=look, args=plan) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    await_usage(pool, pins=0)
    pool.remove(keys)
    await_usage(pool, sealed=0, retired=0)


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def test_a_master_does_not_grow_with_what_came_and_went(rig: Rig) -> None:
    """R31: ten rounds of many small objects, each removed whole."""
    pool = rig.connect()
    sizes = []
    for number in range(10):
        for batch in range(4):
            keys = [f"round{number}/{batch}/{i}" for i in range(450)]
            statuses = pool.put_many(keys, [b"x" * 64] * len(keys))
            assert all(one.ok for one in statuses)
        assert counter(pool, "objects") == 1800
        assert counter(pool, "table_bytes") / counter(pool, "rows_max") < 1024
        assert pool.remove_prefix(f"round{number}/") == 1800
        sizes.append(resident_bytes(rig.master.pid))
    assert counter(pool, "objects") == 0
    assert sizes[-1] <= 1.2 * sizes[1], sizes


def test_asking_for_a_thousand_keys_is_one_message(rig: Rig) -> None:
    """R86: lookups and probes go in batches."""
    pool = rig.connect()
    keys = [f"many/{i}" for i in range(1000)]
    pool.put_many(keys, [b"v"] * len(keys))

    def messages(call: Callable[[], object]) -> int:
        """The fewest of five tries: what nodes report in the meantime counts as well."""
        found = []
        for _ in range(5):
            before = counter(pool, "requests")
            call()
            found.append(counter(pool, "requests") - before - 1)  # the second question itself
        return min(found)

    other = rig.connect()
    asked = messages(lambda: pool.exists(keys)), messages(lambda: other.match_prefix(keys))
    pool.remove_prefix("many/")
    assert asked == (1, 1)


def test_a_steady_workload_keeps_its_hits_and_its_sums(rig: Rig) -> None:
    """R26: a working set of half the memory; what is used and what is free is all there is."""
    draw = random.Random(26)
    pool = rig.connect()
    size, working_set = 64_000, 120
    hits: list[bool] = []
    capacity = counter(pool, "capacity_bytes")
    for number in range(5000):
        key = f"steady/{draw.randrange(working_set)}"
        data = pool.get(key)
        hits.append(data is not None)
        if data is None:
            assert pool.put(key, stamp(key, size)).ok
        else:
            assert data == stamp(key, size)
        if number % 100 == 0:
            pool.remove(f"steady/{draw.randrange(working_set)}")
        if number % 500 == 499:
            objects = counter(pool, "objects")
            assert counter(pool, "committed_bytes") == objects * size
            assert counter(pool, "promised_bytes") == 0
            assert counter(pool, "capacity_bytes") == capacity
    first, last = hits[1000:1500], hits[-500:]
    assert abs(sum(first) - sum(last)) <= 5
    assert counter(pool, "evicted_objects") == 0
    pool.remove_prefix("steady/")
    await_usage(pool, sealed=0, retired=0)
    assert counter(pool, "committed_bytes") == 0


def test_a_master_that_moves_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """R65: the name leads elsewhere; nobody is started anew."""
    real, leads_to = socket.getaddrinfo, "127.0.0.1"

    def resolve(host: Any, *how: Any, **more: Any) -> Any:
        return real(leads_to if host == "pool.test" else host, *how, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with Cluster(MasterConfig(port=0), []) as first:
        assert first.master is not None
        port = first.address.rpartition(":")[2]
        with moonpool.connect(f"pool.test:{port}") as pool:
            before = pool.stat()["term"]
            first.kill(first.master)
            with Cluster(MasterConfig(host="127.0.0.2", port=int(port)), []):
                leads_to = "127.0.0.2"
                eventually(lambda: answers(pool, before), "the master at its new address answers")


def answers(pool: Pool, before: object) -> bool:
    try:
        return pool.stat(timeout_s=2.0)["term"] != before
    except MoonpoolError:
        return False
