"""The words of rails: costs, limits, slices, and what a scheduler wants done.

A rail is one path to one peer: a connection, a NIC address, a transport. Nothing here has a clock,
a thread or a socket; moments are seconds on whatever clock the shell keeps.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from moonpool.core.errors import BadInput


class RailCost(NamedTuple):
    """What a slice takes: `fixed_s` + `block_s` for each block + `byte_s` for each byte."""

    fixed_s: float = 50e-6
    block_s: float = 1e-6
    byte_s: float = 0.4e-9

    def of(self, blocks: int, nbytes: int) -> float:
        """Seconds for so much."""
        return self.fixed_s + self.block_s * blocks + self.byte_s * nbytes


class RailState(StrEnum):
    """UP ─ error, late ─> DEMOTED ─ rested, gets one slice ─> PROBING ─> UP or DEMOTED;
    any ─ the shell says that it is lost ─> DOWN ─ it is there again ─> DEMOTED, rested."""

    UP = "up"
    DEMOTED = "demoted"
    PROBING = "probing"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class RailLimits:
    """How a scheduler behaves; everything it holds is bounded here.

    `slice_bytes`, `slice_blocks_max`: how a transfer is cut. `rail_slices_max`, `peer_slices_max`:
    credits, slices in flight per rail and per peer. `ops_max`, `slices_max`: what may be open in
    all. A slice that fails `attempts_max` times ends its op. A slice is overdue when it takes
    `overdue_factor` times its prediction, and at least `overdue_min_s` more than that predicted;
    on a rail that has never finished one, after `unknown_s`. A demoted rail rests `backoff_s`,
    doubled each time up to `backoff_max_s`. `probe_share` of the slices goes to any rail.
    `learn` is the weight of the newest measurement.
    """

    slice_bytes: int = 1 << 20
    slice_blocks_max: int = 4096
    rail_slices_max: int = 4
    peer_slices_max: int = 64
    ops_max: int = 1024
    slices_max: int = 65_536
    attempts_max: int = 4
    overdue_factor: float = 2.0
    overdue_min_s: float = 0.05
    unknown_s: float = 1.0
    backoff_s: float = 0.05
    backoff_max_s: float = 10.0
    probe_share: float = 0.01
    learn: float = 0.25

    def __post_init__(self) -> None:
        for name in (
            *("slice_bytes", "slice_blocks_max", "rail_slices_max", "peer_slices_max"),
            *("ops_max", "slices_max", "attempts_max"),
        ):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} {getattr(self, name)} must be at least 1")
        if not (0 <= self.probe_share <= 1 and 0 < self.learn <= 1):
            raise BadInput(f"probe_share {self.probe_share}, learn {self.learn}: give 0..1")
        if self.overdue_factor < 1 or not 0 < self.backoff_s <= self.backoff_max_s:
            raise BadInput("overdue_factor is at least 1, and backoff_s from 0 to backoff_max_s")


class Slice(NamedTuple):
    """Part `number` of op `op`: `blocks` blocks or parts of them, `nbytes` in all."""

    op: int
    number: int
    blocks: int
    nbytes: int


class Post(NamedTuple):
    """Send `piece` to `peer` over `rail`; its end is told to the scheduler by `ticket`."""

    ticket: int
    peer: str
    rail: str
    piece: Slice


class Ending(StrEnum):
    """How an op ends."""

    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class Ended(NamedTuple):
    """Op `op` is over, and no attempt of it is in flight. `why` is '' when it is DONE."""

    op: int
    ending: Ending
    why: str


class Step(NamedTuple):
    """What is to be done now: attempts to stop (their end is still to be told), ops that are over,
    slices to send."""

    drops: list[int]
    ended: list[Ended]
    posts: list[Post]


class RailView(NamedTuple):
    """A rail for people: where it stands and what was learnt of it."""

    peer: str
    rail: str
    state: RailState
    cost: RailCost
    slices_done: int
    bytes_done: int
    in_flight: int
    demotions: int
    why: str
