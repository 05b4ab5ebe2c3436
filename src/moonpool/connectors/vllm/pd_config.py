"""`kv_connector_extra_config` of the hand-over connector: its own settings and those of
`[handoff]`, which also come from the environment and the configuration file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple

from moonpool.core.config import Section, setting
from moonpool.core.errors import BadConfig, did_you_mean
from moonpool.core.sections import SCHEMA, HandoffConfig

_WHERE = "kv_connector_extra_config"


class PDConfig(Section, frozen=True, kw_only=True):
    """Settings of MoonpoolHandoffConnector beside those of [handoff]."""

    SECTION: ClassVar[str] = "vllm_handoff"

    name: Annotated[
        str,
        setting("Name of this engine, `remote_engine_id` of a request; empty: vLLM's engine_id."),
    ] = ""
    load_failure: Annotated[
        Literal["recompute", "engine"],
        setting(
            "`recompute`: a prompt whose blocks did not come is computed here; `engine`: what "
            "vLLM's kv_load_failure_policy says (its default ends the request)."
        ),
    ] = "recompute"
    model: Annotated[
        str,
        setting("Name of the weights, equal on both sides; empty: made from the model's files."),
    ] = ""


class Settings(NamedTuple):
    pd: PDConfig
    handoff: HandoffConfig


def settings_of(extra: Mapping[str, object]) -> Settings:
    """From vLLM's dict. Raises BadConfig for what it does not know or cannot take."""
    own = {item.name: item for item in PDConfig.settings()}
    side = [item.name for item in HandoffConfig.settings() if not item.secret]
    for name in extra:
        if name not in own and name not in side:
            hint = did_you_mean(name, [*own, *side])
            raise BadConfig(f"unknown setting in {_WHERE}: '{name}'.{hint}")
    pd = PDConfig(
        **{name: own[name].parse(raw, _WHERE) for name, raw in extra.items() if name in own}
    )
    given = {name: raw for name, raw in extra.items() if name in side}
    return Settings(pd, SCHEMA.load(HandoffConfig, cli=given, env=os.environ).value)
