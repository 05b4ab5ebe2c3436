"""Workers that wrote themselves into etcd, each under a lease of its own: PREFIX/ID -> spec.

A worker that dies loses its lease and with it its key.
"""

from __future__ import annotations

import asyncio

import msgspec

from moonpool.core.errors import BadConfig, BadFrame
from moonpool.core.etcd import EtcdClient, EtcdPair, parse_etcd
from moonpool.router.base import Role
from moonpool.router.service.specs import WorkerSpec, parse_spec

WORKERS_MAX = 65_536
_ROLES: dict[str, Role] = {"both": "both", "prefill": "prefill", "decode": "decode"}


class EtcdSource:
    """'URL/PREFIX', as 'http://127.0.0.1:2379/moonpool/workers'; several members with commas.

    A value is a spec as in the configuration; its role is the key's part after PREFIX when that is
    'prefill/' or 'decode/'.
    """

    name = "etcd"

    def __init__(self, text: str) -> None:
        address = parse_etcd(text)
        if not address.prefix:
            raise BadConfig(f"etcd source {text!r}: write 'http://host:2379/prefix'")
        self._address = address
        self._prefix = address.prefix + "/"

    async def look(self) -> list[WorkerSpec]:
        pairs = await asyncio.to_thread(self._read)
        try:
            return [self._spec(pair) for pair in pairs]
        except UnicodeDecodeError as error:
            raise BadFrame(f"etcd's keys below {self._prefix}: {error}") from None

    def _read(self) -> list[EtcdPair]:
        with EtcdClient(self._address) as client:
            return client.range(self._prefix, prefix=True, limit=WORKERS_MAX)

    def _spec(self, pair: EtcdPair) -> WorkerSpec:
        name = pair.key.decode().removeprefix(self._prefix)
        role, slash, rest = name.partition("/")
        spec = parse_spec(pair.value.decode(), _ROLES.get(role, "both"))
        named = msgspec.structs.replace(spec.worker, id=rest if slash else name)
        return spec._replace(worker=named)
