"""Gathers in the background: the same bytes by every transport, and what becomes of them when the
node does not answer, or the reader is closed."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from moonpool.core.errors import BadInput, Closed, DeadlineExceeded, PrefixGone
from moonpool.sparse import PrefixStore, SparseReader
from tests.faults.pool_rig import MIB, Rig, running
from tests.sparse.stamped import SMALL, rows_of
from tests.sparse.test_stored import TOKENS, TRANSPORTS, UNIT, store_prefix


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(nodes=1, memory=16 * MIB) as rig:
        store_prefix(rig.connect(), "p", 4)
        yield rig


def reader_of(rig: Rig, transport: str, timeout_s: float = 20.0) -> SparseReader:
    pool = rig.connect(shared_memory=transport == "shm", timeout_s=timeout_s)
    return PrefixStore(pool, SMALL, UNIT).reader("p", transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_rows_of_the_background_are_the_same_bytes(rig: Rig, transport: str) -> None:
    random = np.random.default_rng(5)
    with reader_of(rig, transport) as reader:
        wanted = [random.permutation(TOKENS)[:n] for n in (200, 1, 0, 37, 500, 64)]
        outs = [np.empty((len(positions), 656), np.uint8) for positions in wanted]
        tickets = [
            reader.gather_async(number % SMALL.layers, positions, out)
            for number, (positions, out) in enumerate(zip(wanted, outs, strict=True))
        ]
        for number, (ticket, positions, out) in enumerate(zip(tickets, wanted, outs, strict=True)):
            stats = ticket.wait()
            assert ticket.done
            assert (stats.rows, stats.nbytes) == (len(positions), len(positions) * 656)
            layer = number % SMALL.layers
            assert np.array_equal(out, rows_of(SMALL, 4, layer, positions))
            here = np.empty_like(out)
            reader.gather(layer, positions, here)
            assert np.array_equal(out, here)
        with pytest.raises(BadInput, match="outside a prefix of 500"):
            reader.gather_async(0, [500], outs[1])


def test_a_gather_over_tcp_goes_on_after_a_wait_that_ended(rig: Rig) -> None:
    out = np.empty((3, 656), np.uint8)
    with reader_of(rig, "tcp") as reader:
        node = rig.nodes[0]
        rig.stop(node)
        try:
            ticket = reader.gather_async(1, [499, 3, 128], out)
            with pytest.raises(DeadlineExceeded, match=r"not over after 0\.05 s"):
                ticket.wait(0.05)
            assert not ticket.done
        finally:
            rig.wake(node.pid)
        assert ticket.wait().rows == 3
        assert np.array_equal(out, rows_of(SMALL, 4, 1, [499, 3, 128]))


def test_a_gather_over_tcp_ends_with_its_clients_time(rig: Rig) -> None:
    """As one in the foreground: the prefix cannot be reached; it is there when opened again."""
    out = np.empty((3, 656), np.uint8)
    with reader_of(rig, "tcp", timeout_s=0.4) as reader:
        node = rig.nodes[0]
        rig.stop(node)
        try:
            with pytest.raises(PrefixGone, match="cannot be reached"):
                reader.gather_async(1, [499, 3, 128], out).wait()
        finally:
            rig.wake(node.pid)
    with reader_of(rig, "tcp") as again:
        again.gather_async(1, [499, 3, 128], out).wait()
        assert np.array_equal(out, rows_of(SMALL, 4, 1, [499, 3, 128]))


def test_a_reader_that_closes_waits_for_what_is_under_way_and_drops_the_rest(rig: Rig) -> None:
    reader = reader_of(rig, "tcp")
    outs = np.empty((2, 3, 656), np.uint8)
    node = rig.nodes[0]
    rig.stop(node)
    try:
        under_way = reader.gather_async(0, [1, 2, 300], outs[0])
        with pytest.raises(DeadlineExceeded):
            under_way.wait(0.05)  # it has begun
        queued = reader.gather_async(1, [1, 2, 300], outs[1])
        closing = threading.Thread(target=reader.close)
        closing.start()
        closing.join(0.1)
        assert closing.is_alive() and not under_way.done
    finally:
        rig.wake(node.pid)
    closing.join(20)
    assert not closing.is_alive()
    assert under_way.wait().rows == 3
    assert np.array_equal(outs[0], rows_of(SMALL, 4, 0, [1, 2, 300]))
    with pytest.raises(Closed):
        queued.wait()
    with pytest.raises(Closed):
        reader.gather_async(1, [1], outs[1][:1])
