"""The two bodies of a request whose prompt and answer are computed on two workers. Pure.

Both carry one transfer id; with it the decode worker announces the blocks it has reserved on the
prefill worker's side channel, and the prefill worker writes into them while it computes.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from moonpool.router.service.asks import raw_fields

PARAMS = "kv_transfer_params"


class SplitBodies(NamedTuple):
    """What goes to the prefill and to the decode worker."""

    prefill: bytes
    decode: bytes


def split_bodies(
    body: bytes, transfer_id: str, remote: str, engine_id: str | None = None
) -> SplitBodies:
    """Bodies that share `transfer_id`; `remote` is the prefill worker's side channel."""
    fields = raw_fields(body)
    one = msgspec.Raw(b"1")
    prefill = dict(fields)
    prefill["max_tokens"] = one
    if "max_completion_tokens" in prefill:
        prefill["max_completion_tokens"] = one
    prefill.pop("min_tokens", None)
    prefill.pop("stream_options", None)
    prefill["stream"] = msgspec.Raw(b"false")
    prefill[PARAMS] = _raw(
        {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}
    )
    decode = dict(fields)
    decode[PARAMS] = _raw(
        {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "transfer_id": transfer_id,
            "remote": remote,
            "remote_engine_id": engine_id,
        }
    )
    return SplitBodies(msgspec.json.encode(prefill), msgspec.json.encode(decode))


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
