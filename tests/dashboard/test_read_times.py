"""What reads took, of a whole pool: from clients by shared memory and by TCP to `/metrics`."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from moonpool.core.sections import ClientConfig
from moonpool.dashboard.watch import Watch
from moonpool.pool.cluster import Cluster
from moonpool.pool.pool import Pool
from moonpool.pool.shell import BlockingShell
from tests.dashboard.test_app import numbers


@contextmanager
def client(cluster: Cluster, shared_memory: bool) -> Iterator[Pool]:
    config = ClientConfig(
        master=cluster.address, shared_memory=shared_memory, touch_flush_ms=60_000
    )
    with Pool(BlockingShell(config), config) as pool:
        yield pool


async def shown(http: httpx.AsyncClient, watch: Watch, transport: str) -> dict[str, float]:
    await watch.look()
    page = numbers((await http.get("/metrics")).text)
    begin = "moonpool_read_seconds_"
    label = f'{{transport="{transport}"'
    return {name: value for name, value in page.items() if name.startswith(begin) and label in name}


@pytest.mark.parametrize(("shared_memory", "transport"), [(True, "shm"), (False, "tcp")])
async def test_a_read_is_in_the_histogram_of_its_transport(
    http: httpx.AsyncClient,
    watch: Watch,
    cluster: Cluster,
    shared_memory: bool,
    transport: str,
) -> None:
    before = await shown(http, watch, transport)
    with client(cluster, shared_memory) as pool:
        pool.put("k", bytes(5000))
        for _ in range(3):
            assert pool.get("k") is not None
        room = bytearray(5000)
        assert pool.get_many_into(["k"], [room])[0]
        assert pool.get("missing") is None
        pool.flush()
        pool.remove("k")
    after = await shown(http, watch, transport)
    name = f'moonpool_read_seconds_count{{transport="{transport}"}}'
    assert after[name] - before[name] == 4
    total = f'moonpool_read_seconds_sum{{transport="{transport}"}}'
    assert after[total] > before[total]
    buckets = [value for one, value in after.items() if "_bucket" in one]
    assert buckets == sorted(buckets) and buckets[-1] == after[name], "each holds those below it"
    assert f'moonpool_read_seconds_bucket{{transport="{transport}",le="+Inf"}}' in after
