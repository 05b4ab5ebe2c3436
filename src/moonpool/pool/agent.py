"""What a node's side of the control plane asks of whoever owns a segment's tables.

`SegmentAgent` (native) owns memory; `tiers.agent.TierAgent` owns what lies on a tier below it.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]


class TableAgent(Protocol):
    """The calls mean what docs/protocol.md says of an agent."""

    @property
    def term(self) -> int: ...

    @property
    def slots(self) -> int: ...

    @property
    def data_bytes(self) -> int: ...

    @property
    def sequence(self) -> int: ...

    @property
    def valid_until_ns(self) -> int: ...

    def usage(self) -> dict[str, int]: ...

    def raise_term(self, term: int, instance: bytes) -> bool: ...

    def set_valid_until(self, boottime_ns: int) -> None: ...

    def retire(self, slot: U32, generation: U64, term: int, hold_ms: int = 0) -> U8: ...

    def expire(self, term: U64, seq: U64) -> int: ...

    def drain(self) -> int: ...

    def inventory(self, start_slot: int, slots_max: int) -> dict[str, Any]: ...

    def inventory_of(self, slots: U32) -> dict[str, Any]: ...

    def changes(self, after_sequence: int, changes_max: int) -> dict[str, Any] | None: ...

    def tombstone_add(self, hash: bytes, term: int, seq: int) -> int: ...

    def tombstone_remove(self, hash: bytes) -> bool: ...

    def tombstones(self) -> tuple[bytes, U64, U64]: ...
