"""The page in a browser. Debian's chromium is not part of `make setup`: without it, this skips."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

import moonpool

BROWSER = shutil.which("chromium")
pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(BROWSER is None, reason="no chromium here: apt-get install chromium"),
]


def test_the_page_shows_the_pool(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "moonpool", "up", "--port", "0", "--memory", "8MiB"]
    up = subprocess.Popen(
        [*command, "--admin-port", "0", "--json", "--dir", str(tmp_path / "pool")],
        stdout=subprocess.PIPE,
    )
    try:
        assert up.stdout is not None
        ready = json.loads(up.stdout.readline())
        with moonpool.connect(ready["address"]) as pool:
            pool.put_many([f"k{i}" for i in range(1234)], [bytes(64)] * 1234)
        until_seen(f"{ready['admin']}/v1/stat", 1234)
        dom = shown(ready["admin"], tmp_path)
    finally:
        up.terminate()
        up.communicate(timeout=30)
    text = re.sub(r"<[^>]+>", " ", dom[dom.index("<main>") : dom.index("<script>")])
    assert "1,234" in text and "node0" in text and "node1" in text
    assert re.search(r'id="state"[^>]*>ready<', dom)
    assert re.search(r"puts\s+committed\s+1,234", text)


def until_seen(url: str, objects: int) -> None:
    """The browser's time runs ahead of ours: what it shows must be known before."""
    deadline = time.monotonic() + 30
    while httpx.get(url).json()["objects"] != objects:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def shown(url: str, directory: Path) -> str:
    """The page's elements once it has asked the pool."""
    quiet = ("background-networking", "component-update", "sync", "gpu", "quic")
    done = subprocess.run(
        [
            str(BROWSER),
            "--headless",
            "--no-sandbox",
            "--no-first-run",
            *(f"--disable-{what}" for what in quiet),
            f"--user-data-dir={directory / 'browser'}",
            "--virtual-time-budget=5000",
            "--dump-dom",
            url,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=120,
        check=True,
    )
    return done.stdout.decode()
