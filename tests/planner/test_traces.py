"""The trace loader: what it reads, and the lines it refuses."""

import gzip
import hashlib
import json
import lzma
from pathlib import Path

import pytest

from moonpool.core.errors import BadTrace
from moonpool.planner import traces
from moonpool.planner.traces import load, locate, read_requests

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}


def write(path: Path, *lines: object) -> Path:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("conversation", "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df"),
        ("synthetic", "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131"),
    ],
)
def test_the_packaged_traces_are_the_published_ones(name: str, digest: str) -> None:
    with gzip.open(locate(name)) as file:
        assert hashlib.sha256(file.read()).hexdigest() == digest


@pytest.mark.parametrize(
    ("name", "summary"),
    [
        ("conversation", (12_031, 144_793_823, 4_122_048, 288_500, 182_790, 3_537_000)),
        ("synthetic", (3_993, 61_194_628, 595_432, 121_877, 43_924, 1_022_000)),
    ],
)
def test_the_packaged_traces_have_the_known_sums(name: str, summary: tuple[int, ...]) -> None:
    found = load(name).summary
    assert found[:-1] == summary[:-1]
    assert found.duration_ms == pytest.approx(summary[-1], abs=1000)


def test_plain_gz_and_xz_read_the_same(tmp_path: Path) -> None:
    plain = write(tmp_path / "t.jsonl", GOOD, GOOD | {"timestamp": 5, "extra": "ignored"})
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    squeezed = tmp_path / "t.jsonl.xz"
    squeezed.write_bytes(lzma.compress(plain.read_bytes()))
    assert load(plain).requests == load(packed).requests == load(squeezed).requests
    assert [r.timestamp for r in load(plain).requests] == [0, 5]


def test_it_streams(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", GOOD, "not json")
    stream = read_requests(path)
    assert next(stream).hash_ids == [0, 1]
    with pytest.raises(BadTrace, match="t.jsonl:2: "):
        next(stream)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({k: v for k, v in GOOD.items() if k != "hash_ids"}, "missing required field `hash_ids`"),
        (GOOD | {"input_length": "600"}, "Expected `int`, got `str`"),
        (GOOD | {"timestamp": 1.5}, "Expected `int`, got `float`"),
        (GOOD | {"hash_ids": [0, -1]}, "hash_ids"),
        (GOOD | {"hash_ids": [0]}, r"1 hash_ids for input_length 600, but ceil\(600 / 512\) = 2"),
        (GOOD | {"timestamp": -1}, "timestamp"),
        (GOOD | {"hash_ids": [1, 0]}, "block 1 follows nothing here but block 0 before"),
        (GOOD | {"hash_ids": [0, 0]}, "block 0 follows block 0 here but nothing before"),
        ("", "truncated"),
        ("[1, 2]", "Expected `object`, got `array`"),
    ],
)
def test_a_line_that_does_not_fit_is_named(tmp_path: Path, line: object, says: str) -> None:
    path = write(tmp_path / "t.jsonl", GOOD, line)
    with pytest.raises(BadTrace, match=f"t.jsonl:2: .*{says}"):
        load(path)


def test_timestamps_are_sorted(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", GOOD | {"timestamp": 7}, GOOD | {"timestamp": 6})
    with pytest.raises(BadTrace, match="t.jsonl:2: timestamp 6 after 7"):
        load(path)


def test_block_size_and_rounding_are_explicit(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", GOOD | {"input_length": 40})
    assert load(path, block_tokens=16, rounding="floor").block_tokens == 16
    with pytest.raises(BadTrace, match="is this the trace's block size"):
        load(path, block_tokens=16)


def test_an_unknown_name_suggests_the_packaged_one() -> None:
    with pytest.raises(BadTrace, match="Did you mean 'conversation'?"):
        load("conversatoin")


def test_a_damaged_archive_is_a_bad_trace(tmp_path: Path) -> None:
    cut = tmp_path / "t.jsonl.gz"
    cut.write_bytes(locate("synthetic").read_bytes()[:1000])
    with pytest.raises(BadTrace, match="damaged"):
        load(cut)
    plain = tmp_path / "u.jsonl.xz"
    plain.write_bytes(b"{}\n")
    with pytest.raises(BadTrace, match="damaged"):
        load(plain)


def test_a_line_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "LINE_BYTES_MAX", 16)
    with pytest.raises(BadTrace, match="t.jsonl:1: a line of more than 16 bytes"):
        load(write(tmp_path / "t.jsonl", GOOD))
