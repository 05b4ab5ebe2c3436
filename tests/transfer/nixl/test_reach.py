"""Where NIXL is tried, and what UCX is told before it is loaded; no NIXL is needed."""

from pathlib import Path

import pytest

from moonpool.core.host import host_id
from moonpool.transfer.info_page import EngineInfo, NixlInfo
from moonpool.transfer.nixl import reach
from moonpool.transfer.nixl.package import _prepare, has_rdma

HERE = EngineInfo(host=host_id(), pid=1, nixl=NixlInfo("agent", b"", {"kv": (4096, 8)}))
THERE = EngineInfo(host="elsewhere", pid=1, nixl=HERE.nixl)


def test_why_not_says_whose_fault_it_is() -> None:
    assert reach.why_not(True, HERE, "kv", "") == ""
    assert reach.why_not(False, HERE, "kv", "").startswith("off here")
    assert reach.why_not(True, None, "kv", "").startswith("off at the peer")
    assert reach.why_not(True, EngineInfo(host="", pid=1), "kv", "").startswith("off at the peer")
    assert "not registered" in reach.why_not(True, HERE, "other", "")
    assert reach.why_not(True, HERE, "kv", "silent") == "the peer hangs: silent"


@pytest.mark.parametrize("rdma", [False, True])
def test_ucx_s_own_tcp_is_never_chosen(monkeypatch: pytest.MonkeyPatch, rdma: bool) -> None:
    monkeypatch.setattr(reach, "has_rdma", lambda: rdma)
    assert reach.is_near(HERE) and reach.is_near(THERE) is rdma and not reach.is_near(None)


def test_modules_for_cards_stay_out_where_there_are_none(tmp_path: Path) -> None:
    plain = dict[str, str]()
    _prepare(plain, tmp_path / "infiniband")
    assert plain["UCX_MODULES"] == "^ib" and plain["UCX_LOG_FILE"] == "stderr"
    (tmp_path / "mlx5_0").mkdir()
    assert has_rdma(tmp_path) and not has_rdma(tmp_path / "none")
    with_cards = {"UCX_LOG_LEVEL": "info"}
    _prepare(with_cards, tmp_path)
    assert "UCX_MODULES" not in with_cards and with_cards["UCX_LOG_LEVEL"] == "info"
