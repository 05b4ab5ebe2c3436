"""The commands that talk to a running pool."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moonpool.cli import main
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.pool.cluster import Cluster, local_directory

MEMORY = 8 << 20


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with local_directory("test") as directory:
        node = NodeConfig(name="node0", memory=MEMORY, dir=str(directory), persist=False)
        with Cluster(MasterConfig(port=0), [node]) as cluster:
            yield cluster.address


@pytest.fixture(autouse=True)
def _master(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONPOOL_MASTER", address)


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main([*words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_what_is_put_is_got(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    source = tmp_path / "in.bin"
    source.write_bytes(bytes(range(256)) * 1000)
    assert main(["put", "round", str(source)]) == 0
    assert capsysbinary.readouterr().out == b"round: stored, 250 KiB, 1 copy\n"
    assert main(["get", "round"]) == 0
    assert capsysbinary.readouterr().out == source.read_bytes()
    assert main(["get", "round", "-o", str(tmp_path / "out.bin")]) == 0
    assert (tmp_path / "out.bin").read_bytes() == source.read_bytes()


def test_json_carries_the_bytes_as_base64(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").write_bytes(b"\x00\xff")
    put = {"key": "j", "status": "stored", "replicas": 1, "bytes": 2}
    assert rows(capsys, "put", "j", str(tmp_path / "x")) == [put]
    (row,) = rows(capsys, "get", "j")
    assert base64.b64decode(row["base64"]) == b"\x00\xff"


def test_a_second_put_says_exists_and_replace_replaces(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"first")
    second.write_bytes(b"second")
    main(["put", "twice", str(first)])
    capsysbinary.readouterr()
    assert main(["put", "twice", str(second)]) == 0
    assert capsysbinary.readouterr().out == b"twice: exists, nothing was written\n"
    assert main(["put", "twice", str(second), "--replace"]) == 0
    capsysbinary.readouterr()
    main(["get", "twice"])
    assert capsysbinary.readouterr().out == b"second"


def test_a_miss_has_a_reason_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["get", "nowhere"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "nowhere: miss (absent)\n"


def test_exists_rm_and_ls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    for key in ("list/a", "list/b", "other"):
        main(["put", key, str(tmp_path / "x")])
    capsys.readouterr()
    listed = rows(capsys, "ls", "list/")
    assert sorted(row["key"] for row in listed) == ["list/a", "list/b"]
    assert {row["bytes"] for row in listed} == {5}
    assert rows(capsys, "exists", "list/a", "other")[1] == {"key": "other", "exists": True}
    assert rows(capsys, "rm", "list/a") == [{"key": "list/a", "status": "removed"}]
    assert main(["exists", "list/a"]) == 1
    assert capsys.readouterr().out == "list/a: no\n"
    assert rows(capsys, "rm", "--prefix", "list/") == [{"prefix": "list/", "removed": 1}]
    assert rows(capsys, "ls", "list/") == []


def test_ls_stops_at_its_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_bytes(b"")
    for number in range(3):
        main(["put", f"many/{number}", str(tmp_path / "x")])
    capsys.readouterr()
    assert len(rows(capsys, "ls", "many/", "--limit", "2")) == 2
    assert len(rows(capsys, "ls", "many/", "--limit", "0")) == 3


def test_stat_is_one_object_or_tables(capsys: pytest.CaptureFixture[str]) -> None:
    (values,) = rows(capsys, "stat")
    assert values
    assert main(["stat"]) == 0
    assert "node0" in capsys.readouterr().out


def test_too_large_is_an_error_with_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").write_bytes(bytes(2 * MEMORY))
    assert main(["put", "big", str(tmp_path / "x"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"] == "object_too_large"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["put", "k", "/no/such/file"], "cannot read /no/such/file"),
        (["rm"], "rm takes keys or --prefix"),
        (["rm", "k", "--prefix", "p"], "rm takes keys or --prefix"),
        (["put", "", "/dev/null"], "a key of 0 bytes"),
        (["put", "k", "/dev/null", "--ttl", "soon"], "duration 'soon'"),
    ],
)
def test_bad_usage_is_status_2(
    capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err


def test_no_master_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stat", "--master", "127.0.0.1:9", "--timeout-ms", "200"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_drain_says_what_is_left_and_stop_ends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").write_bytes(b"x")
    main(["put", "stays", str(tmp_path / "x"), "--replace"])
    capsys.readouterr()
    (row,) = rows(capsys, "drain", "node0")
    assert row["draining"] and row["copies_left"] >= 1  # there is no other node
    assert main(["drain", "node0", "--wait", "1ms"]) == 1
    capsys.readouterr()
    (row,) = rows(capsys, "drain", "node0", "--stop")
    assert not row["draining"]
    assert main(["drain", "nobody"]) == 2
    assert "nobody" in capsys.readouterr().err


def test_rm_by_conditions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    for key in ("cond/1.tmp", "cond/2.tmp", "cond/3"):
        main(["put", key, str(tmp_path / "x")])
    capsys.readouterr()
    words = ("rm", "--prefix", "cond/", "--suffix", ".tmp")
    two = {"removed": 2, "bytes": 10}
    assert rows(capsys, *words, "--dry-run") == [two | {"dry_run": True}]
    assert rows(capsys, *words) == [two | {"dry_run": False}]
    assert rows(capsys, *words, "--max-size", "5") == [{"removed": 0, "bytes": 0, "dry_run": False}]
    assert main(["rm", "--contains", "cond/", "--min-size", "5B"]) == 0
    assert capsys.readouterr().out == "1 removed, 5 B\n"


def test_put_says_how_firmly_it_is_to_be_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").write_bytes(b"x")
    words = ("put", "kept", str(tmp_path / "x"), "--pin", "soft", "--pin-ttl", "10m")
    (row,) = rows(capsys, *words, "--priority", "high", "--replicas", "2", "--min-replicas", "1")
    assert (row["status"], row["replicas"]) == ("stored", 1)
    assert rows(capsys, "stat")[0]["soft_pins"] == 1
    assert main(["put", "k", str(tmp_path / "x"), "--pin-ttl", "10m"]) == 2
    assert "soft pin" in capsys.readouterr().err
