"""Peers that come and go leave nothing open here: files, threads, memory of regions."""

from __future__ import annotations

import gc
import os
import random
import threading

import numpy as np

from moonpool.transfer import Engine
from tests.transfer.owner import wait_until


def open_files() -> int:
    # Also what other tests left behind in cycles, which goes with the collector.
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_a_thousand_connections_leave_no_handle() -> None:
    """R11: closing a peer gives back what it took, also when a read was under way."""
    with Engine(shared_memory=False) as owner, Engine(shared_memory=False) as engine:
        owner.allocate(4096, "page").array[:] = 7
        address = owner.listen()
        here = engine.allocate(4096)
        before: tuple[int, int] | None = None
        for number in range(1000):
            peer = engine.connect(address)
            op = engine.read(here, None, peer.segment("page"), None)
            if number % 3:
                assert op.wait() and op.check().ok
            peer.close()
            assert op.wait() and op.state.terminal
            if number == 20:
                before = open_files(), threading.active_count()
        assert before is not None
        files, threads = before
        # The last peer's heartbeat may be dialling still.
        wait_until(lambda: open_files() <= files + 4 and threading.active_count() <= threads)


def test_fifty_engines_at_once_have_ports_of_their_own() -> None:
    """R73: nobody chooses a port before it has it, and each reads what it asked for."""
    engines = [Engine() for _ in range(50)]
    found: dict[int, str] = {}

    def listen(number: int) -> None:
        found[number] = engines[number].listen()

    try:
        for number, one in enumerate(engines):
            one.allocate(4096, "mine").array[:] = number
        threads = [threading.Thread(target=listen, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(found.values())) == 50
        with Engine(shared_memory=False) as reader:
            here = reader.allocate(4096)
            for number in random.Random(73).sample(range(50), 10):
                peer = reader.connect(found[number])
                assert reader.read(here, None, peer.segment("mine"), None).wait()
                assert np.all(here.array == number)
    finally:
        for one in engines:
            one.close()
