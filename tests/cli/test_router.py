"""`moonpool router` and `moonpool route explain` as somebody would run them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from moonpool.cli import main
from moonpool.router.http.fetch import fetch
from tests.router.rig import Got, TinyWorker


async def run(*words: str, text: str = "") -> tuple[int, str, str]:
    """A command to its end: status, stdout, stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "moonpool", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(text.encode()), 60)
    return process.returncode or 0, out.decode(), err.decode()


async def ready(url: str) -> None:
    while (await fetch(f"{url}/ready")).status != 200:
        await asyncio.sleep(0.05)


async def test_a_router_and_a_question_to_it() -> None:
    worker = TinyWorker("a")
    await worker.start()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "moonpool", "router", "--port", "0", "--json"),
        *("--worker", f"{worker.url},id=first", "--health-ms", "50"),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"MOONPOOL_TOKEN": ""},
    )
    assert process.stdout is not None
    told = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
    assert told["ready"] == "router" and told["workers"] == 1
    url = told["url"]
    await asyncio.wait_for(ready(url), 30)
    body = json.dumps({"prompt": [1, 2, 3]}).encode()
    assert (await fetch(f"{url}/v1/completions", body=body)).status == 200
    status, out, _ = await run("route", "explain", "Once upon a time", "--router", url, "--json")
    assert status == 0 and json.loads(out)["instance_id"] == "first"
    status, out, _ = await run("route", "explain", "-", "--router", url, text="as a stream")
    assert status == 0 and "first (only): 0 of" in out and "hit tokens" in out
    words = ("--tokens", "1", "--model", "x", "--router", url)
    status, out, err = await run("route", "explain", *words)
    assert status == 1 and "not served" in err + out
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 30) == 0
    worker.kill()


@pytest.mark.parametrize("said", [b"<html>", b"[]", b'{"error": "no"}'])
async def test_what_is_asked_is_no_router(said: bytes) -> None:
    async def talk(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 404 X\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said))

    worker = TinyWorker("a", talk)
    await worker.start()
    status, _, err = await run("route", "explain", "x", "--router", f"{worker.url}/")
    worker.kill()
    assert status == 1 and "is no router's: it answered 404" in err
    assert worker.asked[0].path == "/explain"


async def test_nobody_to_ask() -> None:
    status, _, err = await run("route", "explain", "x", "--router", "http://127.0.0.1:1")
    assert status == 1 and "127.0.0.1:1" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["router", "--worker", "ftp://x"], "no URL of a worker"),
        (["router", "--worker", "http://x,zone"], "key=value"),
        (["router", "--prefill", "http://x:1"], "transfer="),
        (["router", "--discovery", "dsn:x"], "did you mean"),
        (["router", "--host", "0.0.0.0"], "token"),
        (["router", "--health-path", "health"], "begin with '/'"),
        (["router", "--tokenizer", "/nowhere/at/all"], "does not exist"),
        (["route", "explain"], "give a prompt"),
        (["route", "explain", "--tokens", "1,x"], "write ids"),
    ],
)
def test_bad_usage_is_told_in_one_line(
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("MOONPOOL_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert said.lower() in err.lower() and err.count("\n") == 1
