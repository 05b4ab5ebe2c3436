"""`kv_connector_extra_config`: what the connector takes there, with defaults, checks and docs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from moonpool.core.address import check_master
from moonpool.core.config import Section, setting
from moonpool.core.errors import BadConfig, did_you_mean
from moonpool.core.units import BYTES_MAX

Load = Literal["auto", "async", "sync"]
_WHERE = "kv_connector_extra_config"


def _wait(help: str, maximum: int = 600_000) -> Any:
    return setting(help, unit="ms", minimum=1, maximum=maximum)


class ConnectorConfig(Section, frozen=True, kw_only=True):
    """Settings of MoonpoolConnector. The token of the pool comes from MOONPOOL_TOKEN only: vLLM
    writes its configuration into its log."""

    SECTION: ClassVar[str] = "vllm"

    master: Annotated[
        str,
        setting("Address of the pool's master, 'host:port'; empty: as `moonpool config` says."),
    ] = ""
    load: Annotated[
        Load,
        setting(
            "`sync`: the step that needs the blocks waits for them, layer by layer, which is the "
            "fastest for its request; `async`: the request waits for its blocks while others go "
            "on; `auto`: sync for a request that is alone, else async. With several workers or KV "
            "groups always async."
        ),
    ] = "auto"
    load_failure: Annotated[
        Literal["recompute", "engine"],
        setting(
            "`recompute`: blocks that could not be loaded are computed; `engine`: what vLLM's "
            "kv_load_failure_policy says (its default ends the request)."
        ),
    ] = "recompute"
    load_tokens_min: Annotated[
        int, setting("Hits of fewer tokens are not loaded.", minimum=0, maximum=2**31 - 1)
    ] = 0
    lookup_timeout_ms: Annotated[
        int,
        _wait("The scheduler waits so long for what the pool has; then it is a miss."),
    ] = 100
    load_timeout_ms: Annotated[
        int, _wait("Blocks that have not come after this time are computed.")
    ] = 2000
    save_timeout_ms: Annotated[
        int, _wait("Blocks not stored after this time are given up; no request waits for it.")
    ] = 5000
    retry_ms: Annotated[
        int, _wait("A pool that did not answer is left alone so long, then twice as long, ...")
    ] = 500
    retry_max_ms: Annotated[int, _wait("... and at most so long.")] = 10_000
    failed_block_ms: Annotated[
        int, _wait("A block that failed to load is not asked for again before this time.")
    ] = 10_000
    save_decode: Annotated[
        bool, setting("Store the blocks of answers too, not only those of prompts.")
    ] = True
    save_buffer: Annotated[
        int,
        setting(
            "Memory of each worker for blocks on their way to the pool; beyond it blocks are not "
            "stored.",
            unit="bytes",
            minimum=1 << 20,
            maximum=BYTES_MAX,
        ),
    ] = 256 << 20
    load_buffer: Annotated[
        int,
        setting(
            "Memory of each worker for blocks that come from other hosts; others need none.",
            unit="bytes",
            minimum=1 << 20,
            maximum=BYTES_MAX,
        ),
    ] = 128 << 20
    load_threads: Annotated[
        int, setting("Threads of each worker that load.", minimum=1, maximum=64)
    ] = 2
    replicas: Annotated[
        int, setting("Copies of each stored block, on distinct nodes.", minimum=1, maximum=8)
    ] = 1
    model: Annotated[
        str,
        setting(
            "Name of the weights in keys. Empty: made from the files of the model and its "
            "configuration, so that equal names with different weights never meet."
        ),
    ] = ""
    tenant: Annotated[str, setting("Engines of different tenants share nothing. Not a secret.")] = (
        ""
    )

    def check(self) -> None:
        if self.master:
            check_master(self.master)
        if self.retry_max_ms < self.retry_ms:
            raise BadConfig(
                f"{_WHERE}: retry_max_ms = {self.retry_max_ms} is shorter than "
                f"retry_ms = {self.retry_ms}"
            )


def connector_config(extra: Mapping[str, object]) -> ConnectorConfig:
    """From vLLM's dict. Raises BadConfig for what it does not know or cannot take."""
    known = {item.name: item for item in ConnectorConfig.settings()}
    values = {}
    for name, raw in extra.items():
        if name not in known:
            raise BadConfig(f"unknown setting in {_WHERE}: '{name}'.{did_you_mean(name, known)}")
        values[name] = known[name].parse(raw, _WHERE)
    return ConnectorConfig(**values)


def options_table() -> str:
    """The settings as a table in markdown, for docs/engines/vllm.md."""
    rows = [
        f"| `{item.name}` | {item.show(item.default)} | {item.help} |\n"
        for item in ConnectorConfig.settings()
    ]
    return "| setting | default | what it does |\n| --- | --- | --- |\n" + "".join(rows)
