"""What a forked child collects: it holds copies of its parent's objects without their threads, and
the garbage of a parent is collected wherever the next collection happens to be, also between fork
and exec."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import gc, os, signal, sys, tempfile, threading
import numpy as np
import moonpool
from moonpool import _core
from moonpool.transfer.engine import Engine

def threads_for_files(folder, backend):
    io = _core.FileIo(backend)
    descriptor = os.open(folder + "/file", os.O_RDWR | os.O_CREAT)
    lengths, zero = np.array([4096], np.uint64), np.zeros(1, np.uint64)
    def use():
        job = io.submit(descriptor, True, bytes(4096), zero, zero, lengths, 1 << 62, True, False)
        assert job.wait(20_000) and job.state == "DONE"
        return job
    return use, [io, use()]

def make(folder):
    if WHAT == "file io_uring" or WHAT == "file threads":
        return threads_for_files(folder, WHAT.removeprefix("file "))
    if WHAT == "helpers":
        helpers = _core.Helpers(3)
        return (lambda: helpers), [helpers]
    if WHAT == "engine":
        engine = Engine(dir=folder)
        memory = engine.allocate(1 << 20)
        file = engine.open_file(folder + "/file", 1 << 20, create=True)
        def use():
            over = threading.Event()
            engine.write(memory, None, file, None).add_done_callback(lambda _: over.set())
            assert over.wait(20)
        return use, [engine, memory, file]
    if WHAT == "peers":
        engines = [Engine(dir=folder), Engine(dir=folder)]
        memory, far = (engine.allocate(1 << 20, name="memory") for engine in engines)
        peer = engines[0].connect(engines[1].listen())
        def use():
            op = engines[0].read(memory, None, peer.segments["memory"], None)
            assert op.wait(20) and op.result
        return use, [*engines, memory, far, peer]
    pool = moonpool.Pool.local(memory="8MiB")
    pool.put("key", b"value")
    view = pool.view("key")
    def use():
        assert pool.get("key") == b"value"
    return use, [pool, view]

with tempfile.TemporaryDirectory() as folder:
    use, kept = make(folder)
    use()
    gc.collect()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # for what waits for its parent's threads
        use = None
        kept.clear()
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    use()
    print("parent goes on")
    while kept:
        one = kept.pop()
        getattr(one, "close", getattr(one, "release", lambda: None))()
"""


@pytest.mark.parametrize(
    "what", ["file io_uring", "file threads", "helpers", "engine", "peers", "pool"]
)
def test_what_a_child_collects_is_still_its_parents(what: str, tmp_path: Path) -> None:
    if what == "file io_uring":
        from moonpool import _core

        if why := _core.FileIo("auto").why_no_uring:
            pytest.skip(f"no io_uring here: {why}")
    # Newer Pythons warn of forking beside threads, which is what this is about.
    command = [sys.executable, "-W", "ignore", "-c", f"WHAT = {what!r}\n{SCRIPT}"]
    done = subprocess.run(command, timeout=120, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "parent goes on\n"), done.stderr
