"""The line over a replay's figures."""

import pytest

from moonpool.cli.replay.command import title_of


@pytest.mark.parametrize(("nodes", "text"), [(1, "1 node"), (3, "3 nodes")])
def test_the_title_counts_its_nodes(nodes: int, text: str) -> None:
    record = {"trace": "mini", "requests": 7, "nodes": nodes, "block_bytes": 16384}
    assert title_of(record) == f"mini: 7 requests, {text}, blocks of 16 KiB"
