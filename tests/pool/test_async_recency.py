"""What an asyncio client reads stays, though its reads ask the master nothing."""

from __future__ import annotations

import pytest

import moonpool
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.pool.cluster import Cluster, local_directory

OBJECT_BYTES = 1 << 20


async def test_reads_of_remembered_places_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONPOOL_CLIENT_TOUCH_FLUSH_MS", "1")
    with local_directory("test") as directory:
        node = NodeConfig(name="node0", memory=8 * OBJECT_BYTES, dir=str(directory), persist=False)
        with (
            Cluster(MasterConfig(port=0, nodes_expected=1), [node]) as cluster,
            moonpool.connect(cluster.address) as writer,
        ):
            writer.put("hot", bytes(OBJECT_BYTES))
            writer.put("cold", bytes(OBJECT_BYTES))
            async with await moonpool.aio.connect(cluster.address) as reader:
                for i in range(20):
                    assert await reader.get("hot") is not None, f"evicted before put {i}"
                    while len(reader._shell.state.touches):
                        await reader.get("hot")
                        if reader._flush is not None:
                            await reader._flush
                    writer.put(f"other{i}", bytes(OBJECT_BYTES))
            assert not writer.exists("cold")
