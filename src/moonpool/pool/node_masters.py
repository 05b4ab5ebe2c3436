"""A node and its masters: one is obeyed, those that stand by are told what it holds. No I/O.

Links are numbers given by the shell. Whoever sends Adopt under a term that the segment accepts is
obeyed from then on; what an earlier one still says is judged by its term alone.
"""

from __future__ import annotations

from typing import NamedTuple

from moonpool.pool import messages as m
from moonpool.pool.node_machine import NodeMachine
from moonpool.pool.node_shadow import Shadow

FOLLOW_VERSION = 2


class Tell(NamedTuple):
    """Send `message` on `link`."""

    link: int
    message: m.NodeToMaster


class NodeMasters:
    """All links of one node."""

    def __init__(self, machine: NodeMachine) -> None:
        self.machine = machine
        self.obeyed: int | None = None
        self._shadows: dict[int, Shadow] = {}

    def connected(self, link: int, now: float, version: int = m.PROTOCOL_VERSION) -> list[Tell]:
        """`version` of the messages agreed with this master."""
        self._shadows[link] = Shadow(self.machine.agent)
        if self.obeyed is None:
            self.machine.heard_at = now
        return [Tell(link, self.machine.join(follows=version >= FOLLOW_VERSION))]

    def disconnected(self, link: int) -> None:
        self._shadows.pop(link, None)
        if link == self.obeyed:
            self.obeyed = None
            self.machine.disconnected()

    def handle(self, link: int, message: m.Message, now: float, boottime_ns: int) -> list[Tell]:
        """What a master said; what is not for a node is ignored."""
        shadow = self._shadows.get(link)
        if shadow is None:
            return []
        match message:
            case m.Adopt():
                return self._adopt(link, message, now, boottime_ns)
            case m.Follow() if link != self.obeyed:
                shadow.follow(message)
                return []
            case m.Retire() if link != self.obeyed:
                return [Tell(link, self.machine.retire(message))]
            case m.HeartbeatAck() if link != self.obeyed:
                return []
        heard_at = self.machine.heard_at
        answers = self.machine.handle(message, now, boottime_ns)  # type: ignore[arg-type]
        if link != self.obeyed:
            self.machine.heard_at = heard_at
        return [Tell(link, answer) for answer in answers]

    def _adopt(self, link: int, order: m.Adopt, now: float, boottime_ns: int) -> list[Tell]:
        heard_at = self.machine.heard_at
        answers = self.machine.handle(order, now, boottime_ns)
        if answers:
            self.obeyed = link
            self._shadows[link].forget()
        elif link != self.obeyed:
            self.machine.heard_at = heard_at  # of a master that is not obeyed, so not of ours
        return [Tell(link, answer) for answer in answers]

    def tick(self, now: float, boottime_ns: int) -> list[Tell]:
        told = self.machine.tick(now, boottime_ns)
        tells = [] if self.obeyed is None else [Tell(self.obeyed, one) for one in told]
        for link, shadow in self._shadows.items():
            tells += (Tell(link, one) for one in shadow.tick(now))
        return tells

    def leaving(self, what: str) -> list[Tell]:
        """Of a segment that leaves (see Leaving). Who stands by only needs to know that it is gone:
        a node says the rest again to whoever leads."""
        if self.obeyed is None or not self.machine.adopted:
            return []
        machine = self.machine
        tells = [Tell(self.obeyed, m.Leaving(machine.segment, machine.agent.term, what))]
        if what == "gone":
            gone = ((link, shadow.gone()) for link, shadow in self._shadows.items())
            tells += (Tell(link, message) for link, message in gone if message is not None)
        return tells

    def pending(self, link: int) -> bool:
        """There are pieces of the inventory for this master."""
        if link == self.obeyed:
            return self.machine.inventory_pending()
        return link in self._shadows and self._shadows[link].pending

    def chunk(self, link: int) -> Tell:
        """The next of them; call while `pending`, with other work in between."""
        if link == self.obeyed:
            return Tell(link, self.machine.inventory_chunk())
        return Tell(link, self._shadows[link].chunk())

    def next_deadline(self) -> float:
        moments = [shadow.next_deadline() for shadow in self._shadows.values()]
        return min([self.machine.next_deadline(), *(one for one in moments if one is not None)])
