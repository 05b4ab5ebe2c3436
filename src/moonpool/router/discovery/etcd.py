"""Workers that wrote themselves into etcd, each under a lease of its own: PREFIX/ID -> spec.

It speaks to etcd's JSON gateway, which every etcd since 3.4 has on its client port, so no client
library is needed. A worker that dies loses its lease and with it its key.
"""

from __future__ import annotations

import base64
import binascii
from urllib.parse import urlsplit

import msgspec

from moonpool.core.errors import BadConfig, BadFrame, Unreachable
from moonpool.router.base import Role
from moonpool.router.http.fetch import fetch
from moonpool.router.service.specs import WorkerSpec, parse_spec

WORKERS_MAX = 65_536
_ROLES: dict[str, Role] = {"both": "both", "prefill": "prefill", "decode": "decode"}


class _Pair(msgspec.Struct):
    key: str
    value: str = ""


class _Range(msgspec.Struct):
    kvs: list[_Pair] = []


class EtcdSource:
    """'URL/PREFIX', as 'http://127.0.0.1:2379/moonpool/workers'.

    A value is a spec as in the configuration; its role is the key's part after PREFIX when that is
    'prefill/' or 'decode/'.
    """

    name = "etcd"

    def __init__(self, text: str) -> None:
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path in ("", "/"):
            raise BadConfig(f"etcd source {text!r}: write 'http://host:2379/prefix'")
        self._url = f"{parts.scheme}://{parts.netloc}/v3/kv/range"
        self._prefix = parts.path.strip("/").encode() + b"/"

    async def look(self) -> list[WorkerSpec]:
        end = self._prefix[:-1] + bytes([self._prefix[-1] + 1])
        question = {
            "key": base64.b64encode(self._prefix).decode(),
            "range_end": base64.b64encode(end).decode(),
            "limit": WORKERS_MAX,
        }
        answer = await fetch(self._url, body=msgspec.json.encode(question))
        if answer.status != 200:
            raise Unreachable(f"{self._url} answered {answer.status}")
        try:
            pairs = msgspec.json.decode(answer.body, type=_Range).kvs
            return [self._spec(pair) for pair in pairs]
        except (msgspec.DecodeError, binascii.Error, UnicodeDecodeError) as error:
            raise BadFrame(f"{self._url}: {error}") from None

    def _spec(self, pair: _Pair) -> WorkerSpec:
        name = base64.b64decode(pair.key, validate=True).removeprefix(self._prefix).decode()
        role, slash, rest = name.partition("/")
        spec = parse_spec(
            base64.b64decode(pair.value, validate=True).decode(), _ROLES.get(role, "both")
        )
        named = msgspec.structs.replace(spec.worker, id=rest if slash else name)
        return spec._replace(worker=named)
