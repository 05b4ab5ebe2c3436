"""Settings of the hand-over connector: where they come from, and what is refused."""

from __future__ import annotations

import pytest

from moonpool.connectors.vllm.pd_config import settings_of
from moonpool.core.errors import BadConfig


def test_extra_config_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONPOOL_HANDOFF_PORT", "7000")
    monkeypatch.setenv("MOONPOOL_HANDOFF_LEASE_MS", "900")
    settings = settings_of({"port": 7701, "name": "p0", "load_failure": "engine"})
    assert (settings.handoff.port, settings.handoff.lease_ms) == (7701, 900)
    assert (settings.pd.name, settings.pd.load_failure) == ("p0", "engine")


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"prot": 7701}, "unknown setting in kv_connector_extra_config: 'prot'. Did you mean"),
        ({"token": "secret"}, "unknown setting"),
        ({"port": 99_999}, "port"),
        ({"load_failure": "maybe"}, "load_failure"),
        ({"lease_ms": 100}, "two beats"),
        ({"host": "0.0.0.0"}, "token"),
    ],
)
def test_what_it_does_not_know_or_cannot_take(
    extra: dict[str, object], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOONPOOL_JOB", raising=False)
    with pytest.raises(BadConfig, match=named):
        settings_of(extra)
