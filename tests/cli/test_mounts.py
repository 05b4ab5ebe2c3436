"""`moonpool node mount`, `mounts` and `unmount` before a node that runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from moonpool.cli import main
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.pool.cluster import Cluster, local_directory


def rows(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, Any]]:
    assert main(["node", *map(str, words), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_segment_comes_and_goes(capsys: pytest.CaptureFixture[str]) -> None:
    with local_directory("test") as directory:
        node = NodeConfig(name="a", memory=8 << 20, dir=str(directory), persist=False)
        with Cluster(MasterConfig(port=0), [node]):
            where = ("--dir", directory, "--name", "a")
            (made,) = rows(capsys, "mount", "--size", "4MiB", *where)
            assert (made["segment"], made["capacity_bytes"], made["objects"]) == (2, 4 << 20, 0)
            (one,) = rows(capsys, "mounts", "--dir", directory)  # the only node there
            assert one["segment"] == 2
            (gone,) = rows(capsys, "unmount", "--segment", 2, "--wait", "60s", *where)
            assert gone["state"] == "gone"
            assert rows(capsys, "mounts", *where) == []
            words = [str(word) for word in where]
            assert main(["node", "unmount", "--segment", "2", *words]) == 2
            assert main(["node", "mount", *words]) == 2


def test_without_a_node_it_says_so(tmp_path: Path) -> None:
    assert main(["node", "mounts", "--dir", str(tmp_path)]) == 1
