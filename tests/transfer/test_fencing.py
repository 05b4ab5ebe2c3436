"""What waits for fences. How writes are fenced between processes: test_engine_rails.py."""

from collections.abc import Iterator

import pytest

from moonpool import _core
from moonpool.transfer.base import OpState
from moonpool.transfer.fencing import Fences
from moonpool.transfer.op import Op
from moonpool.transfer.tcp import CompletionPump
from tests.transfer.conftest import segment, state_of, transfer


@pytest.fixture
def connection() -> Iterator[_core.Connection]:
    """To a process that knows of fences: this one."""
    endpoint = _core.Endpoint(1, b"")
    yield endpoint.connect(f"127.0.0.1:{endpoint.listen_tcp('127.0.0.1', 0)}", 10_000)
    endpoint.close()


def fences(ways: list[_core.Connection]) -> Fences:
    return Fences(CompletionPump(_core.Endpoint(2, b"")), lambda: list(ways))


def write() -> Op:
    return Op(transfer("write", segment(8), segment(8), [(0, 0, 8)]), "tcp")


def test_a_write_with_nothing_to_wait_for_begins_at_once() -> None:
    inner = write()
    assert fences([]).before(inner.transfer, frozenset(), lambda: inner) is inner


def test_a_write_is_not_begun_when_nobody_can_end_the_one_before(
    connection: _core.Connection,
) -> None:
    inner = write()
    op = fences([]).before(inner.transfer, {connection}, lambda: inner)
    assert state_of(op) is OpState.FAILED and "may still be applied" in str(op.error)
    assert state_of(inner) is OpState.QUEUED
