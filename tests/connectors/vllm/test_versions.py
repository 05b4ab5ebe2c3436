"""A vLLM that the connector does not fit is refused by name, not by an error from its depths."""

import importlib
import importlib.util

import pytest

import moonpool
from moonpool.connectors.vllm.versions import SUPPORTED, check_version
from moonpool.core.errors import BadConfig, MissingExtra


def asked(name: str) -> object:
    """As vLLM asks a `kv_connector_module_path` for its `kv_connector`."""
    found: object = getattr(importlib.import_module("moonpool.connectors.vllm"), name)
    return found


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1.dev3+cpu"])
def test_what_fits(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.31.2", "0.33.0rc1", "1.32.0", "0.320.0", "dev"])
def test_another_version_is_named_with_ours(version: str) -> None:
    with pytest.raises(BadConfig) as raised:
        check_version(version)
    text = str(raised.value)
    assert f"vLLM {version};" in text and moonpool.__version__ in text
    assert all(supported in text for supported in SUPPORTED)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_one_line_says_so() -> None:
    with pytest.raises(MissingExtra, match="inside vLLM 0.32"):
        asked("MoonpoolConnector")


def test_no_other_names() -> None:
    with pytest.raises(AttributeError, match="Connector"):
        asked("Connector")
