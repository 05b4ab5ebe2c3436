"""kv_connector_extra_config: defaults, units, and mistakes that are said before the engine runs."""

import pytest

from moonpool.connectors.vllm.config import ConnectorConfig, connector_config, options_table
from moonpool.core.errors import BadConfig


def test_defaults() -> None:
    config = connector_config({})
    assert config.load == "auto" and config.load_failure == "recompute"
    assert config.replicas == 1 and config.save_decode is True


def test_sizes_and_durations_take_units() -> None:
    config = connector_config({"save_buffer": "64MiB", "load_timeout_ms": "1.5s", "replicas": 2})
    assert (config.save_buffer, config.load_timeout_ms, config.replicas) == (64 << 20, 1500, 2)


def test_an_unknown_setting_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(BadConfig, match=r"kv_connector_extra_config: 'mater'. Did you mean 'mas"):
        connector_config({"mater": "127.0.0.1:7400"})


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"load": "sometimes"}, "load"),
        ({"replicas": 0}, "replicas"),
        ({"master": "h:99999"}, "99999"),
        ({"save_buffer": "much"}, "save_buffer"),
        ({"retry_ms": 5000, "retry_max_ms": 100}, "retry_max_ms = 100"),
    ],
)
def test_a_bad_value_is_named(extra: dict[str, object], text: str) -> None:
    with pytest.raises(BadConfig, match=text):
        connector_config(extra)


def test_no_setting_takes_the_token() -> None:
    """vLLM prints its configuration."""
    assert "token" not in {item.name for item in ConnectorConfig.settings()}


def test_the_table_has_every_setting() -> None:
    table = options_table()
    for item in ConnectorConfig.settings():
        assert f"| `{item.name}` | {item.show(item.default)} |" in table
