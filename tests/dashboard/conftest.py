"""A real pool of two nodes, its admin application without a socket, and a way to ask it."""

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

import moonpool.aio
from moonpool.core.admin_section import AdminConfig
from moonpool.core.clock import SystemClock
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.dashboard.app import Admin
from moonpool.dashboard.watch import Watch
from moonpool.pool.aio import AsyncPool
from moonpool.pool.cluster import Cluster, local_directory

MEMORY = 4 << 20


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with local_directory("test") as directory:
        nodes = [
            NodeConfig(name=f"node{i}", memory=MEMORY, dir=str(directory), persist=False)
            for i in range(2)
        ]
        with Cluster(MasterConfig(port=0, nodes_expected=2), nodes) as cluster:
            yield cluster


@pytest.fixture
def config(cluster: Cluster) -> AdminConfig:
    return AdminConfig(master=cluster.address, object_bytes_max=65_536, requests_max=4)


@pytest.fixture
async def pool(cluster: Cluster) -> AsyncIterator[AsyncPool]:
    async with await moonpool.aio.connect(cluster.address) as pool:
        yield pool
        await pool.remove([found.key async for found in pool.list()])


@pytest.fixture
async def watch(pool: AsyncPool, config: AdminConfig) -> Watch:
    watch = Watch(pool, config, SystemClock())
    await watch.look()
    return watch


@pytest.fixture
async def http(
    pool: AsyncPool, watch: Watch, config: AdminConfig
) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(Admin(pool, watch, config)) as client:
        yield client


def client_of(admin: Admin) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=admin.application())
    return httpx.AsyncClient(transport=transport, base_url="http://pool")
