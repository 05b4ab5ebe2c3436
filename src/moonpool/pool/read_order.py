"""Which copy of an object a read takes. Pure: what is known of each copy in, an order out.

It chooses among copies that the master called readable and that the reader has not found
otherwise: one that is being reclaimed says so when it is read, and is not tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from moonpool.pool.ports import BELOW, Port

if TYPE_CHECKING:
    from moonpool.pool.client_state import Replica
    from moonpool.pool.hedging import Hedging
    from moonpool.pool.read_costs import ReadCosts

MAPPED, BESIDE, ELSEWHERE = range(3)


class Rank(NamedTuple):
    """Of copies at one port; the smallest is read first. What stands first decides first."""

    below: int
    """0 memory, then the media below it, fastest first."""
    silent: bool
    """It did not answer a moment ago."""
    transport: int
    """MAPPED: copied in place; BESIDE: by a socket of this host; ELSEWHERE."""
    distance: int
    """Labels (rack, zone; on this host numa) of the reader's place that its node does not share."""
    octave: int = 0
    """What reads of it took lately, in powers of two; 0 where that is not asked."""


def placed(port: Port, distance: int, here: bool) -> Rank:
    """By medium, transport and place alone, which do not change from read to read."""
    below = BELOW.index(port.kind) + 1 if port.kind in BELOW else 0
    transport = MAPPED if port.local else BESIDE if here else ELSEWHERE
    return Rank(below, False, transport, distance)


def weighed(
    ranks: Mapping[Port, Rank], hedging: Hedging, costs: ReadCosts, now: float
) -> dict[Port, Rank] | None:
    """The same with what reads tell of those that are awaited. None: nothing that would change the
    order."""
    told: dict[Port, Rank] = {}
    for port, rank in ranks.items():
        if rank.transport == MAPPED or rank.below:
            told[port] = rank
            continue
        octave = costs.octave(port.incarnation, now)
        told[port] = rank._replace(silent=hedging.slow(port, now), octave=octave)
    awaited = [rank for rank in told.values() if rank.transport != MAPPED and not rank.below]
    if len({rank.octave for rank in awaited}) < 2 and not any(rank.silent for rank in awaited):
        return None
    return told


def best(
    replicas: Sequence[Replica], tried: Iterable[Replica], ranks: Mapping[Port, Rank]
) -> Replica | None:
    """The one to read, of those not tried; of equal ones the first. None: all were tried."""
    left = [replica for replica in replicas if replica not in tried]
    return min(left, key=lambda replica: ranks[replica.port], default=None)
