"""vLLM on Moonpool: `kv_connector_module_path` of a `--kv-transfer-config` names this package.

It must import without vLLM and torch; `MoonpoolConnector` is made when vLLM asks for it, after a
look at vLLM's version. It is no member of `__all__`: whoever lists a package would import vLLM.
"""

from __future__ import annotations

from typing import Any

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name != "MoonpoolConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from moonpool.connectors.vllm.versions import check_installed

    check_installed()
    from moonpool.connectors.vllm.connector import MoonpoolConnector

    return MoonpoolConnector
