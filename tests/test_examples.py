"""Each example runs as its first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.pool.cluster import Cluster, local_directory
from tests.tree import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "layers.py": "decode: layer 5 is here",
    "plain_client.py": "removed: its slot answers nothing any more",
    "prompt_cache.py": "follow-up of it: 9 of 14 blocks were there already",
    "two_processes.py": "reader: two-processes/7 read in place",
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with local_directory("examples") as directory:
        node = NodeConfig(name="node0", memory=32 << 20, dir=str(directory), persist=False)
        with Cluster(MasterConfig(port=0, nodes_expected=1), [node]) as cluster:
            yield cluster.address


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(script: Path, address: str) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={**os.environ, "PYTHONPATH": path, "MOONPOOL_MASTER": address},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[script.name] in done.stdout
    assert done.stderr == ""
