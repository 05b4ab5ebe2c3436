"""`kv_transfer_params` of a request, as a proxy writes them: what every engine reads alike."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from moonpool.core.address import parse_address
from moonpool.core.errors import BadInput
from moonpool.transfer.handoff.messages import TRANSFER_ID_CHARS_MAX


class Origin(NamedTuple):
    """Where a decode request's blocks are computed: the prefill worker's side channel, and the name
    it must have."""

    remote: str
    engine: str | None


def transfer_of(params: Mapping[str, Any]) -> str:
    """Raises BadInput."""
    transfer = params.get("transfer_id")
    if not isinstance(transfer, str) or not 0 < len(transfer) <= TRANSFER_ID_CHARS_MAX:
        raise BadInput(f"transfer_id is a text of 1..{TRANSFER_ID_CHARS_MAX} characters")
    return transfer


def origin_of(params: Mapping[str, Any]) -> Origin:
    """Raises BadInput."""
    remote, engine = params.get("remote"), params.get("remote_engine_id")
    if not isinstance(remote, str) or not remote:
        raise BadInput("remote is the prefill engine's side channel, host:port")
    parse_address(remote)
    if engine is not None and not isinstance(engine, str):
        raise BadInput("remote_engine_id is a text or null")
    return Origin(remote, engine)
