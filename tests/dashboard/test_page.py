"""The page in a browser. Debian's chromium is not part of `make setup`: without it, this skips.

apt-get install chromium && .venv/bin/python -m pytest tests/dashboard/test_page.py
"""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
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
    """Nodes, segments and tiers, and what goes on while it is looked at."""
    command = [sys.executable, "-m", "moonpool", "up", "--port", "0", "--memory", "8MiB"]
    environment = {
        **os.environ,
        "MOONPOOL_NODE_DISK": str(tmp_path / "disk"),
        "MOONPOOL_NODE_DISK_SIZE": "16MiB",
        "MOONPOOL_MASTER_OFFLOAD": "write",
    }
    up = subprocess.Popen(
        [*command, "--admin-port", "0", "--json", "--dir", str(tmp_path / "pool")],
        stdout=subprocess.PIPE,
        env=environment,
    )
    over = threading.Event()
    try:
        assert up.stdout is not None
        ready = json.loads(up.stdout.readline())
        with moonpool.connect(ready["address"]) as pool:
            pool.put_many([f"k{i}" for i in range(1234)], [bytes(64)] * 1234)
            load = threading.Thread(target=read_until, args=(pool, over))
            load.start()
            try:
                until_seen(ready["admin"])
                dom = shown(ready["admin"], tmp_path)
            finally:
                over.set()
                load.join()
    finally:
        up.terminate()
        up.communicate(timeout=30)
    text = re.sub(r"<[^>]+>", " ", dom[dom.index("<main>") : dom.index("<script>")])
    assert "1,234" in text and "node0" in text and "node1" in text
    assert re.search(r'id="state"[^>]*>ready<', dom)
    assert re.search(r"puts\s+committed\s+1,234", text)
    tiers = text[text.index("reads it served") : text.index("Nodes and their segments")]
    assert re.search(r"memory\s+[1-9][\d,]*\s", tiers) and re.search(r"disk\s+0\s", tiers)
    segments = text[text.index("Nodes and their segments") : text.index("Why a key")]
    assert segments.count("memory") == segments.count("disk") == 2
    share = re.search(r'id="hit-now">([\d.]+) %<', dom)
    assert share is not None and 0 < float(share[1]) < 100
    assert re.search(r'id="read-now">[1-9][\d.]* [KM]?i?B/s<', dom)
    assert re.search(r'aria-label="bytes read a second"><polyline points="\S+ \S+', dom)


def read_until(pool: moonpool.Pool, over: threading.Event) -> None:
    """One of five keys was never put."""
    number = 0
    while not over.is_set():
        pool.get_many([f"k{(number + i) % 1234}" for i in range(80)])
        pool.get_many([f"absent{number + i}" for i in range(20)])
        number += 80
        over.wait(0.02)


def until_seen(url: str) -> None:
    """The browser's time runs ahead of ours: what it shows must be known before."""
    deadline = time.monotonic() + 60
    while True:
        stat = httpx.get(f"{url}/v1/stat").json()
        history = httpx.get(f"{url}/v1/history").json()
        if stat["objects"] == 1234 and stat["tier_objects"] == 1234 and len(history) > 2:
            if all(one["read_bytes"] > 0 for one in history[-2:]):
                return
        assert time.monotonic() < deadline, (stat, history)
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
