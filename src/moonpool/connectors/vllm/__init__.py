"""vLLM on Moonpool: `kv_connector_module_path` of a `--kv-transfer-config` names this package.

It must import without vLLM and torch; the connectors are made when vLLM asks for one, after a
look at vLLM's version. They are no members of `__all__`: whoever lists a package would import vLLM.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__: list[str] = []

_CONNECTORS = {"MoonpoolConnector": "connector", "MoonpoolHandoffConnector": "pd_connector"}


def __getattr__(name: str) -> Any:
    if name not in _CONNECTORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from moonpool.connectors.vllm.versions import check_installed

    check_installed()
    return getattr(importlib.import_module(f"{__name__}.{_CONNECTORS[name]}"), name)
