"""Real processes on one segment: killed at every step of a table change, and reading while pages
get other owners."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from moonpool.sparse import SparsePool
from moonpool.sparse.leases import digest
from moonpool.sparse.segment_format import NO_OWNER
from tests.sparse.roles import LEASE_S
from tests.sparse.stamped import SMALL, rows_of, small_pool, write

pytestmark = pytest.mark.faults


def start(role: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.sparse.roles", role, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def each_step(path: str, role: str) -> Iterator[Callable[[int], bool]]:
    """A call that lets a process die before table change n; True: there was one."""
    process = start("each-step", path, role)
    assert process.stdin is not None and process.stdout is not None
    sent, told = process.stdin, process.stdout

    def die_before(step: int) -> bool:
        print(step, file=sent, flush=True)
        code = int(told.readline())
        assert code in (0, -9)
        return code == -9

    try:
        yield die_before
    finally:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    return process.returncode, output


def assert_whole(pool: SparsePool) -> None:
    """Every page is one living prefix's or free, and what is published is what was written."""
    pool.reap()
    tables, held = pool._tables, 0
    for name, owner in (("old", 1), ("new", 7)):
        if not pool.exists(name):
            continue
        with pool.reader(name) as reader:
            entry = tables.find(digest(name))
            assert entry is not None
            held += len(tables.pages_of(entry))
            for layer in range(SMALL.layers):
                out = np.empty((reader.length, 656), np.uint8)
                reader.read_layer(layer, out)
                assert np.array_equal(out, rows_of(SMALL, owner, layer, range(reader.length)))
    assert pool.stat().free_pages == pool.stat().pages - held
    assert np.count_nonzero(tables.owners != NO_OWNER) == held


def test_a_writer_killed_at_every_step_leaves_whole_tables(tmp_path: Path) -> None:
    with small_pool(tmp_path, 512) as pool, each_step(str(pool.paths[0]), "writing") as die_before:
        whole = pool.stat()
        for step in count():
            write(pool, "old", 1, 100)
            died = die_before(step)
            assert_whole(pool)
            for name in ("old", "new"):
                pool.remove(name)
            assert pool.stat() == whole
            if not died:
                break
        assert step > 40


def test_a_reader_killed_at_every_step_ends_with_its_lease(tmp_path: Path) -> None:
    with (
        small_pool(tmp_path, 512, lease_s=0.05) as pool,
        each_step(str(pool.paths[0]), "reading") as die_before,
    ):
        write(pool, "old", 1, 100)
        for step in count():
            died = die_before(step)
            with pool.reader("old") as reader:
                out = np.empty((2, 656), np.uint8)
                reader.gather(1, [9, 0], out)
                assert np.array_equal(out, rows_of(SMALL, 1, 1, [9, 0]))
            if not died:
                break
        assert step > 5
        pool.remove("old")
        until_s = time.monotonic() + 30 * LEASE_S
        while pool.stat().free_pages < pool.stat().pages and time.monotonic() < until_s:
            time.sleep(LEASE_S / 20)
            pool.reap()
        assert pool.stat().free_pages == pool.stat().pages
        assert pool.stat().leases == 0


def test_no_gather_is_ever_of_two_owners(tmp_path: Path) -> None:
    """A writer reuses pages as fast as it can; a reader without a lease checks every row."""
    with small_pool(tmp_path, 1024, devices=1, lease_s=0.0) as pool:
        path = str(pool.paths[0])
        writer = start("churn", path, "100")
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            code, output = finish(start("read", path, "150"))
        finally:
            writer.kill()
            writer.communicate()
        assert code == 0, output
        assert output.startswith("good")
