"""A node's side of the control plane, without I/O: join, adoption, inventory, retire, heartbeats.

    JOINING --Adopt--> ADOPTED --connection lost--> JOINING
Only a master whose term is at least the segment's is obeyed. The data plane (claims, seals, reads)
does not come through here: the native endpoint serves it.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

import numpy as np

from moonpool.pool import messages as m
from moonpool.pool.agent import TableAgent
from moonpool.pool.columns import u32, u64
from moonpool.pool.node_shadow import CHANGES_MAX, CHUNK_SLOTS, changes_after, chunk_of

DRAIN_S = 0.05
GIVEN_BACK_MAX = 1024  # as many as a master counts in its life


class NodeState(Enum):
    JOINING = "joining"
    ADOPTED = "adopted"


class NodeMachine:
    """`endpoint` says how clients reach the segment. Times: monotonic seconds, boot-clock ns."""

    def __init__(
        self,
        agent: TableAgent,
        endpoint: m.SegmentEndpoint,
        heartbeat_s: float = 0.5,
        *,
        leased: bool = True,
    ) -> None:
        """`leased` False: in one process nobody can be cut off: reads never expire."""
        self.agent = agent
        self.endpoint = endpoint
        self.heartbeat_s = heartbeat_s
        self.leased = leased
        self.state = NodeState.JOINING
        self.segment = -1
        self.lease_ns = 0
        self.refusal = ""
        self.heard_at = 0.0  # when the master last said something
        self._inventory_slot = -1  # next slot to report, -1: nothing to report
        self._reported = 0  # highest change number the master has been told
        # The master has heard, under its term, all that is here: only then do heartbeats renew the
        # lease. Until it has said what was removed meanwhile, nobody reads on the strength of it.
        self._reconciled = False
        self._sent_at: list[int] = []  # boot-clock times of heartbeats not yet acknowledged, or 0
        self._next_heartbeat = 0.0
        self._next_drain = 0.0
        self.copies: deque[m.Copy] = deque()  # to be fetched by the shell, then `keep`
        # Incarnations of further segments that this node no longer lends: some master may not have
        # heard it when they went.
        self.given_back: deque[bytes] = deque(maxlen=GIVEN_BACK_MAX)

    # --- events ---------------------------------------------------------------------------------

    def connected(self, now: float) -> list[m.NodeToMaster]:
        self.heard_at = now
        self.disconnected()
        return [self.join()]

    def join(self, follows: bool = True) -> m.JoinSegment:
        """What a master is told first."""
        return m.JoinSegment(
            self.endpoint,
            self.agent.term,
            self.agent.slots,
            self.agent.data_bytes,
            self.agent.usage()["sealed"],
            follows=follows,
            given_back=[*self.given_back],
        )

    def disconnected(self) -> None:
        self.state = NodeState.JOINING
        self._inventory_slot = -1
        self._sent_at.clear()

    def handle(self, message: m.MasterToNode, now: float, boottime_ns: int) -> list[m.NodeToMaster]:
        self.heard_at = now
        match message:
            case m.Adopt():
                return self._adopt(message, now, boottime_ns)
            case m.HeartbeatAck():
                self._acknowledged(message)
            case m.Retire():
                return [self.retire(message)]
            case m.Expire():
                if message.term == self.agent.term:
                    self.agent.expire(u64(message.version_term), u64(message.version_sequence))
                    self.agent.drain()
            case m.Copy():
                if message.term == self.agent.term:
                    self.copies.append(message)
            case m.Tombstones():
                self._tombstones(message)
            case m.Failure():
                self.refusal = message.text
        return []

    def tick(self, now: float, boottime_ns: int) -> list[m.NodeToMaster]:
        if now >= self._next_drain:
            self._next_drain = now + DRAIN_S
            self.agent.drain()
        if self.state is not NodeState.ADOPTED or now < self._next_heartbeat:
            return []
        self._next_heartbeat = now + self.heartbeat_s
        self._sent_at.append(boottime_ns if self._reconciled else 0)
        del self._sent_at[:-64]
        return [self._heartbeat()]

    def next_deadline(self) -> float:
        return min(self._next_drain, self._next_heartbeat) if self.adopted else self._next_drain

    @property
    def adopted(self) -> bool:
        return self.state is NodeState.ADOPTED

    def readable(self, boottime_ns: int) -> bool:
        """What it holds may be read: the master has renewed its lease."""
        return self.adopted and (not self.leased or self.agent.valid_until_ns > boottime_ns)

    def inventory_pending(self) -> bool:
        return self._inventory_slot >= 0

    def inventory_chunk(self) -> m.InventoryChunk:
        """The next piece; call while inventory_pending(), with other work in between."""
        assert self._inventory_slot >= 0, "no inventory is being reported"
        columns = self.agent.inventory(self._inventory_slot, CHUNK_SLOTS)
        next_slot = int(columns["next_start"])
        last = next_slot >= self.agent.slots
        self._inventory_slot = -1 if last else next_slot
        if last and not self._reconciled:
            self._reconciled = True
            self._next_heartbeat = 0.0
        return chunk_of(columns, self.segment, self.agent.term, last)

    # --- what the master says ---------------------------------------------------------------------

    def _adopt(self, message: m.Adopt, now: float, boottime_ns: int) -> list[m.NodeToMaster]:
        if not self.agent.raise_term(message.term, message.instance):
            return []  # an older master: it learns from our silence, its lease on us ends
        self.segment = message.segment
        self.lease_ns = message.node_lease_ms * 1_000_000
        self._reconciled = False
        if self.leased and self.agent.valid_until_ns == 0:
            self.agent.set_valid_until(boottime_ns)
        self.state = NodeState.ADOPTED
        self._sent_at.clear()  # those were for another master, or of another term: never answered
        known: int | None = None
        changes: list[m.NodeToMaster] = []
        if message.since >= 0:
            known, changes = changes_after(self.agent, self.segment, message.since)
        self._reported = self.agent.sequence if known is None else known
        self._inventory_slot = 0 if known is None else -1
        self._reconciled = known is not None
        self._next_heartbeat = now if self._reconciled else now + self.heartbeat_s
        blob, terms, sequences = self.agent.tombstones()
        count = len(terms)
        ends = (np.arange(1, count + 1, dtype=np.uint32) * 16).tobytes()
        adopted = m.Adopted(
            self.segment,
            message.term,
            self._reported,
            m.KeyColumn(bytes(blob), ends),
            np.asarray(terms, np.uint64).tobytes(),
            np.asarray(sequences, np.uint64).tobytes(),
            self._reconciled,
            self.agent.usage()["sealed"],
        )
        return [adopted, *changes]

    def _acknowledged(self, message: m.HeartbeatAck) -> None:
        if message.term != self.agent.term or not self._sent_at:
            return
        # Acknowledgements come in order: this one answers the oldest heartbeat. The lease counts
        # from before that heartbeat was sent.
        sent = self._sent_at.pop(0)
        if sent and self.leased:
            self.agent.set_valid_until(sent + self.lease_ns)
        if message.want_inventory and self._inventory_slot < 0:
            self._inventory_slot = 0

    def retire(self, message: m.Retire) -> m.RetireDone:
        """Also for a master that is not obeyed: the agent refuses what comes of an older term."""
        status = self.agent.retire(
            u32(message.slot), u64(message.generation), message.term, message.hold_ms
        )
        self.agent.drain()
        return m.RetireDone(message.id, message.segment, np.asarray(status, np.uint8).tobytes())

    def _tombstones(self, message: m.Tombstones) -> None:
        if message.term != self.agent.term:
            return
        terms, sequences = u64(message.add_term), u64(message.add_sequence)
        for i, (term, sequence) in enumerate(zip(terms, sequences, strict=True)):
            digest = message.add.blob[16 * i : 16 * i + 16]
            self.agent.tombstone_add(digest, int(term), int(sequence))
        for i in range(len(message.forget.blob) // 16):
            self.agent.tombstone_remove(message.forget.blob[16 * i : 16 * i + 16])

    def _heartbeat(self) -> m.Heartbeat:
        usage = {name: int(value) for name, value in self.agent.usage().items()}
        changes = self.agent.changes(self._reported, CHANGES_MAX)
        if changes is None:
            self._reported = self.agent.sequence
            return m.Heartbeat(self.segment, self.agent.term, self._reported, usage, gap=True)
        if len(changes["sequence"]):
            self._reported = int(changes["sequence"][-1])
        if len(changes["sequence"]) == CHANGES_MAX:  # there may be more: told at the next tick
            self._next_heartbeat = self._next_drain
        return m.Heartbeat(
            self.segment,
            self.agent.term,
            self._reported,
            usage,
            changes["sequence"].tobytes(),
            changes["kind"].tobytes(),
            changes["slot"].tobytes(),
            changes["generation"].tobytes(),
            changes["term"].tobytes(),
            changes["seq"].tobytes(),
        )
