"""An op whose connection was lost goes on over another one, whoever looks at it meanwhile. How it
does between processes: test_engine_rails.py."""

import threading

import numpy as np

from moonpool import _core
from moonpool.transfer.base import OpState
from moonpool.transfer.op import Op
from moonpool.transfer.tcp import CompletionPump, TcpOp
from tests.transfer.conftest import segment, transfer
from tests.transfer.endpoints import connected, u64


class Rails:
    """Finds the heir when `found` is set."""

    def __init__(self, heir: Op) -> None:
        self.heir = heir
        self.asked = threading.Event()
        self.found = threading.Event()

    def unanswered(self, connection: _core.Connection) -> None:
        raise AssertionError("a read leaves nothing behind")

    def take_over(self, op: TcpOp) -> Op | None:
        self.asked.set()
        assert self.found.wait(60)
        return self.heir


def test_a_second_waiter_waits_for_the_heir_that_the_first_one_looks_for() -> None:
    request = transfer("read", segment(8), segment(8), [(0, 0, 8)])
    rails = Rails(Op(request, "tcp"))
    with connected() as pair:
        pump = CompletionPump(pair.client)
        pair.connection.close()
        op = TcpOp(request, pump, pair.connection, rails, heirs=True)
        memory = np.zeros(8, dtype=np.uint8)
        op.posted([pair.connection.read_raw(1, u64(0), u64(8), memory, u64(0))])
        first = threading.Thread(target=op.done)
        first.start()
        assert rails.asked.wait(60)
        waited: list[bool] = []
        second = threading.Thread(target=lambda: waited.append(op.wait(60)))
        second.start()
        second.join(0.1)  # one that does not wait is back by then
        rails.found.set()
        first.join()
        rails.heir.settle(OpState.DONE)
        second.join()
        assert waited == [True] and op.result.ok
    pump.close()
