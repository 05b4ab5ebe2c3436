"""docs/engines/vllm.md says what the code says."""

import json
import re

from moonpool.connectors.vllm.config import connector_config, options_table
from moonpool.connectors.vllm.counters import COUNTERS
from moonpool.connectors.vllm.versions import SUPPORTED
from tests.tree import ROOT

PAGE = (ROOT / "docs/engines/vllm.md").read_text(encoding="utf-8")


def test_the_options_are_those_of_the_schema() -> None:
    """Written by options_table(); paste it anew after a change."""
    assert options_table() in PAGE


def test_every_counter_with_its_reasons() -> None:
    for name, (text, parts) in COUNTERS.items():
        reasons = ", ".join(f"`{part}`" for part in parts) or "-"
        assert f"| `{name}` | {reasons} | {text} |" in PAGE


def test_the_version() -> None:
    assert re.findall(r"vLLM (\d+\.\d+)", PAGE)[:1] == [SUPPORTED[-1]]


def test_what_is_to_be_copied_works() -> None:
    (shown,) = re.findall(r"--kv-transfer-config '(\{.*?\}\})'", PAGE, re.DOTALL)
    transfer = json.loads(shown)
    assert transfer["kv_connector_module_path"] == "moonpool.connectors.vllm"
    assert transfer["kv_connector"] == "MoonpoolConnector"
    assert connector_config(transfer["kv_connector_extra_config"]).master == "127.0.0.1:7400"
