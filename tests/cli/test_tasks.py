"""`copy`, `move`, `clear` and `task` before a real pool of two nodes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import moonpool
from moonpool.cli import main
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.pool.cluster import Cluster, local_directory


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with local_directory("test") as directory:
        nodes = [
            NodeConfig(name=f"node{i}", memory=8 << 20, dir=str(directory), persist=False)
            for i in range(2)
        ]
        with Cluster(MasterConfig(port=0, nodes_expected=2), nodes) as cluster:
            yield cluster.address


@pytest.fixture(autouse=True)
def pool(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[moonpool.Pool]:
    monkeypatch.setenv("MOONPOOL_MASTER", address)
    with moonpool.connect(address) as pool:
        pool.remove_prefix("t/")
        yield pool


def rows(capsys: pytest.CaptureFixture[str], status: int, *words: str) -> list[dict[str, Any]]:
    assert main([*words, "--json"]) == status
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def copies(pool: moonpool.Pool, key: str) -> int:
    return next(one.replicas for one in pool.list("t/") if one.key == key.encode())


def test_a_copy_then_a_clearing(pool: moonpool.Pool, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(5):
        pool.put(f"t/{i}", b"x" * 1000)
    places = pool.match_prefix([f"t/{i}" for i in range(5)]).nodes
    there = places.count("node1")
    (row,) = rows(capsys, 0, "copy", "--prefix", "t/", "--to", "node1")
    assert (row["state"], row["keys"], row["done"], row["failed"]) == ("done", 5, 5, 0)
    assert row["bytes"] == 1000 * (5 - there)
    assert all(copies(pool, f"t/{i}") == 1 + (places[i] == "node0") for i in range(5))
    first, *kept = rows(capsys, int(there > 0), "clear", "--prefix", "t/", "--source", "node1")
    assert (first["done"], first["failed"]) == (5 - there, there)
    assert [one["outcome"] for one in kept] == ["last"] * there
    assert all(copies(pool, f"t/{i}") == 1 for i in range(5))


def test_a_move_and_its_task(pool: moonpool.Pool, capsys: pytest.CaptureFixture[str]) -> None:
    pool.put("t/a", b"value")
    (here,) = pool.match_prefix(["t/a"]).nodes
    other = "node1" if here == "node0" else "node0"
    first, absent = rows(capsys, 1, "move", "t/a", "t/none", "--source", here, "--to", other)
    assert (first["state"], first["done"], first["failed"]) == ("done", 1, 1)
    assert (absent["key"], absent["outcome"]) == ("t/none", "absent")
    assert pool.get("t/a") == b"value"
    with moonpool.connect() as fresh:
        assert fresh.match_prefix(["t/a"]).nodes == [other]
    listed = rows(capsys, 0, "task")
    assert first["task"] in [one["task"] for one in listed]
    again = rows(capsys, 1, "task", first["task"])
    assert again[0]["state"] == "done" and again[1] == absent


def test_only_begun_and_cancelled(pool: moonpool.Pool, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [bytes(1 << 20)] * 4
    pool.put_many([f"t/{i}" for i in range(4)], blocks)
    words = ("copy", "--prefix", "t/", "--to", "node1", "--no-wait", "--deadline", "30s")
    (row,) = rows(capsys, 0, *words)
    main(["task", row["task"], "--cancel", "--json"])  # 0 when all was copied by then
    told, *_ = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told["state"] in ("cancelled", "done")


def test_what_is_no_task_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    (lost,) = rows(capsys, 1, "task", "1-1")
    assert lost["state"] == "lost"
    assert main(["task", "none"]) == 2
    assert main(["copy", "t/a", "--to", "nobody"]) == 2
    assert main(["copy", "--to", "node1"]) == 2
    assert main(["task", "--cancel"]) == 2
