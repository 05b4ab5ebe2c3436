"""`moonpool demo` on a tiny model and a short document, and the replay it was before."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from moonpool.cli import main
from moonpool.cli.demo import story
from moonpool.cli.demo.asking import Answer, ask
from moonpool.cli.demo.engines import EngineProcess
from moonpool.cli.replay import plot
from moonpool.core.errors import NotReady, Unreachable, missing_extra
from moonpool.planner import traces
from tests.engine.tiny import write_model

pytestmark = pytest.mark.faults


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traces.load("conversation").head(100)
    monkeypatch.setattr(traces, "load", lambda name: trace)


def test_two_engines_one_pool_and_the_same_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    model = write_model(tmp_path / "tiny")
    document = tmp_path / "document.txt"
    document.write_text("All work and no play makes Jack a dull boy. " * 20)
    words = ["--model", str(model), "--document", str(document), "--rounds", "1", "--json"]
    assert main(["demo", *words, "--out", str(tmp_path / "out")]) == 0
    *rows, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert last["answers_equal"] and last["answers"] == len(rows) == 9
    assert last["reference_cold_ttft_ms"] > 0 and last["reference_float32_ttft_ms"] > 0
    assert last["reference_reason"] is None and last["reference_dtype"] in ("bfloat16", "float32")
    same = last[f"reference_{last['reference_dtype']}_ttft_ms"]
    assert last["reference_cold_ttft_ms"] == same
    assert last["reference_ratio"] == pytest.approx(last["cold_ttft_ms"] / same)
    assert (tmp_path / "out" / "engines.png").stat().st_size > 0
    cold, pool, local, *again = rows[:6]
    assert (cold["local_tokens"], cold["pool_tokens"]) == (0, 0)
    assert pool["pool_tokens"] >= 832 and pool["local_tokens"] == 0  # 13 blocks of the document
    assert local["local_tokens"] == pool["pool_tokens"] and local["pool_tokens"] == 0
    assert all(row["pool_tokens"] or row["local_tokens"] for row in again)
    assert all(row["local_tokens"] == row["pool_tokens"] == 0 for row in rows[6:])


def row(how: str, question: int, ttft_ms: float, tokens: tuple[int, ...] = (1, 2)) -> story.Row:
    return story.Row("A", how, question, 0, Answer("x", tokens, 100, 0, 64, ttft_ms, 5.0))


def test_the_summary_is_of_medians() -> None:
    rows = [row(story.COLD, 0, ms) for ms in (500, 100, 300)]
    rows += [row(story.POOL, 1, 30), row(story.LOCAL, 2, 27)]
    found = story.summary(rows)
    assert (found["cold_ttft_ms"], found["pool_ttft_ms"], found["local_ttft_ms"]) == (300, 30, 27)
    assert found["moonpool_share"] == pytest.approx(0.1)
    assert found["answers_equal"] is True


@pytest.mark.parametrize(
    ("tokens", "equal"),
    [
        ((1, 2), True),
        ((1, 3), False),
        ((1,), False),
        ((), False),
        ((1, 2, *range(20)), False),  # the others ended where this one goes on
    ],
)
def test_one_answer_that_differs_is_seen(tokens: tuple[int, ...], equal: bool) -> None:
    rows = [row(story.COLD, 0, 1), row(story.POOL, 1, 1), row(story.LOCAL, 2, 1)]
    found = story.summary([*rows, row(story.OFF, 1, 1, tokens)])
    assert found["answers_equal"] is equal


def test_answers_of_later_rounds_are_cut_short() -> None:
    rows = [row(story.COLD, 0, 1), row(story.POOL, 1, 1), row(story.LOCAL, 2, 1)]
    whole, cut = tuple(range(24)), tuple(range(8))
    rows += [row(story.OFF, 3, 1, whole), row(story.OFF, 3, 1, cut)]
    assert story.summary(rows)["answers_equal"] is True
    assert story.summary([*rows, row(story.OFF, 3, 1, cut[:7])])["answers_equal"] is False


@pytest.mark.parametrize("option", ["--model", "--document"])
def test_what_is_missing_is_said_before_anything_starts(
    option: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def started(*_: Any) -> None:
        raise AssertionError("nothing may be started")

    model = write_model(tmp_path / "tiny")
    monkeypatch.setattr("subprocess.Popen.__init__", started)
    assert main(["demo", "--model", str(model), option, str(tmp_path / "absent")]) == 2
    assert "absent" in capsys.readouterr().err


@pytest.mark.usefixtures("short")
def test_the_replay_ends_with_a_picture_a_table_and_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert main(["demo", "--trace", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (tmp_path / "out" / "replay.png").stat().st_size > 0
    assert any(line.startswith("hit tokens ") for line in lines)
    assert lines[-1].startswith("100 chat requests went through a pool of 2 nodes in ")
    assert lines[-1].endswith("every byte that was read was checked, with no error.")


@pytest.mark.usefixtures("short")
def test_without_matplotlib_it_names_the_extra_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> None:
        raise missing_extra("--plot", "plot")

    monkeypatch.setattr(plot, "require_matplotlib", absent)
    assert main(["demo", "--trace", "--out", str(tmp_path / "out"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["requests"] == 100
    assert "moonpool[plot]" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("said", [b"", b"7\r\ndata: {", b"nothing of HTTP\r\n"])
def test_an_answer_that_breaks_off_is_said(said: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(said if b"HTTP" in said else head + said)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Unreachable):
            ask(listening.getsockname()[1], [], salt="", max_tokens=1)
        thread.join()


def test_an_engine_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    with EngineProcess("A", ["--model", str(tmp_path / "absent")]) as engine:
        with pytest.raises(NotReady, match="engine A did not come up: .*there are no weights at"):
            _ = engine.port
