"""NIXL off or not installed: one line that says so, and everything else works."""

import pytest

from moonpool.core.errors import MissingExtra, TransferError
from moonpool.transfer.base import OpState
from moonpool.transfer.engine import Engine
from tests.transfer.conftest import stamped
from tests.transfer.nixl.conftest import INSTALLED
from tests.transfer.owner import Owner


def test_off_is_said_and_harms_nothing(folder: str) -> None:
    with Owner(folder) as owner, Engine(dir=folder) as engine:
        raw = engine.connect(owner.address).segment("raw")
        memory = engine.allocate(raw.nbytes)
        op = engine.read(memory, None, raw, None, transport="nixl")
        assert op.state is OpState.FAILED and type(op.error) is TransferError
        assert str(op.error).endswith("off here (transfer.nixl)")
        assert "nixl" not in [choice.transport for choice in engine.explain(raw)]
        op = engine.read(memory, None, raw, None)
        assert op.wait() and op.result.ok and op.transport == "tcp"
        assert memory.array.tobytes() == stamped(raw.nbytes, 8).tobytes()


@pytest.mark.skipif(INSTALLED, reason="NIXL is installed here")
def test_not_installed_is_one_line(folder: str) -> None:
    with pytest.raises(MissingExtra) as caught:
        Engine(dir=folder, nixl=True)
    assert str(caught.value) == "the nixl transport needs an extra: pip install 'moonpool[nixl]'"
    with Engine(dir=folder) as engine:
        memory = engine.register(stamped(4096))
        assert engine.read(engine.allocate(4096), None, memory, None).result.ok
