"""Every option that a client command shows reaches its client, and so does the file of --config."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool.cli import main
from moonpool.cli.client import add_client_options, open_pool
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.pool.cluster import Cluster, local_directory


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with local_directory("test") as directory:
        node = NodeConfig(name="node0", memory=8 << 20, dir=str(directory), persist=False)
        with Cluster(MasterConfig(port=0), [node]) as cluster:
            yield cluster.address


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    add_client_options(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_the_way_to_a_segment_is_as_asked_for(address: str, shared_memory: bool) -> None:
    option = "--shared-memory" if shared_memory else "--no-shared-memory"
    with open_pool(parsed("--master", address, option)) as pool:
        pool.put("k", b"value")
        assert pool.get("k") == b"value"
        assert pool._state.cache[b"k"].replicas[0].port.local is shared_memory
        pool.remove("k")


@pytest.mark.parametrize(("option", "verify"), [("--verify", True), ("--no-verify", False)])
def test_sums_are_checked_or_not(address: str, option: str, verify: bool) -> None:
    with open_pool(parsed("--master", address, option)) as pool:
        assert pool._verify is verify


def test_the_file_says_what_no_option_does(address: str, tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text(f'[client]\nmaster = "{address}"\nverify = false\ncache_entries_max = 7\n')
    with open_pool(parsed("--config", str(file))) as pool:
        assert not pool._verify and pool._state.cache_entries_max == 7
    with open_pool(parsed("--config", str(file), "--verify")) as pool:
        assert pool._verify


@pytest.mark.parametrize("command", ["stat", "top --once", "explain absent"])
def test_tls_files_that_are_not_there_are_said(
    address: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "ca.pem")
    assert main([*command.split(), "--master", address, "--tls-ca", missing, "--json"]) == 2
    assert "tls_ca" in "".join(capsys.readouterr())
