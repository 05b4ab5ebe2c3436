"""The bench of the proxy runs, and every answer of every subject is whole."""

import pytest

from moonpool.bench import Settings, proxy


@pytest.mark.faults
def test_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "ALONE_REQUESTS", 20)
    monkeypatch.setattr(proxy, "CROWD_REQUESTS", 100)
    rows = list(proxy.rows(Settings(rounds=1)))
    assert len(rows) == 6
    assert all(row["bench"] == "proxy" and row["ok"] for row in rows)
    assert {row["subject"] for row in rows} == {"direct", "moonpool", "starlette+aiohttp"}
