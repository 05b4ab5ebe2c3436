"""What masters, nodes and clients read and write in etcd to find each other (see ha_election)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from moonpool.core.errors import BadFrame
from moonpool.core.etcd import EtcdClient, EtcdPair
from moonpool.pool.ha_election import Beat, LeaderRecord, Seen

MASTER_TTL_S = 5
NODES_MAX = 1024  # more are not named: after a change of leaders all wait the grace time


class Registry:
    """One pool's keys. Blocking; raises what EtcdClient raises."""

    def __init__(self, url: str, timeout_s: float = 5.0, try_s: float = 1.0) -> None:
        self.client = EtcdClient(url, timeout_s, try_s)
        self._prefix = self.client.address.prefix
        self._lease = 0

    @property
    def leader_key(self) -> str:
        return f"{self._prefix}/leader"

    @property
    def _beat_key(self) -> str:
        return f"{self._prefix}/beat"

    def read(self, within_s: float | None = None) -> Seen:
        """`within_s`: sooner than `timeout_s`."""
        pairs = self.client.range(f"{self._prefix}/", prefix=True, within_s=within_s)
        return self._seen(pairs)

    def claim(self, seen: Seen, record: LeaderRecord, nodes: Iterable[str]) -> int:
        """Take the lead, if all is still as seen: the revision of the record, or 0.

        An answer that got lost raises; whether it was done shows the next `read`."""
        done = self.client.swap(
            {self.leader_key: seen.leader_revision, self._beat_key: seen.beat_revision},
            {
                self.leader_key: msgspec.json.encode(record),
                self._beat_key: msgspec.json.encode(Beat(0, tuple(nodes))),
            },
        )
        return done.revision if done.succeeded else 0

    def renew(self, revision: int, number: int, nodes: Iterable[str]) -> bool:
        """False: the record of `revision` is not there any more, somebody else leads."""
        beat = msgspec.json.encode(Beat(number, tuple(nodes)))
        return self.client.swap({self.leader_key: revision}, {self._beat_key: beat}).succeeded

    def resign(self, revision: int, nodes: Iterable[str]) -> None:
        """Let the others take the lead at once, if it is still that of `revision`. The last term
        and the nodes stay known."""
        beat = msgspec.json.encode(Beat(0, tuple(nodes), resigned=True))
        self.client.swap({self.leader_key: revision}, {self._beat_key: beat})

    def enlist(self, address: str, instance: str) -> None:
        """Say that this master runs; again and again, well within MASTER_TTL_S."""
        if self._lease and self.client.keep_alive(self._lease):
            return
        self._lease = self.client.grant(MASTER_TTL_S)
        key = f"{self._prefix}/masters/{instance}"
        self.client.put(key, address.encode(), lease=self._lease)

    def leave(self) -> None:
        if self._lease:
            self.client.revoke(self._lease)
            self._lease = 0

    def close(self) -> None:
        self.client.close()

    def _seen(self, pairs: list[EtcdPair]) -> Seen:
        leader, leader_revision, beat, beat_revision = None, 0, Beat(0), 0
        masters = []
        try:
            for pair in pairs:
                name = pair.key.decode().removeprefix(f"{self._prefix}/")
                if name == "leader":
                    leader = record_of(pair.value)
                    leader_revision = pair.mod_revision
                elif name == "beat":
                    beat = msgspec.json.decode(pair.value, type=Beat)
                    beat_revision = pair.mod_revision
                elif name.startswith("masters/"):
                    masters.append(pair.value.decode())
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadFrame(f"etcd below {self._prefix}/: {error}") from None
        return Seen(leader, leader_revision, beat, beat_revision, tuple(masters))


def record_of(value: bytes) -> LeaderRecord:
    """Raises msgspec.MsgspecError."""
    return msgspec.json.decode(value, type=LeaderRecord)
