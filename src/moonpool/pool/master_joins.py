"""Nodes join and are adopted: no agent takes orders, and nothing is granted on its segment, before
it has raised its term to the master's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from moonpool.core.errors import BadInput
from moonpool.core.tenants import tenant_number
from moonpool.pool import messages as m
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.catalog.segments import Segment
from moonpool.pool.columns import u64
from moonpool.pool.effects import Effect, Send
from moonpool.pool.master_agents import Agents
from moonpool.pool.master_links import Links, LinkState, NodeLink
from moonpool.pool.master_presence import Presence
from moonpool.pool.master_restoring import Restoring
from moonpool.pool.master_standby import Standby
from moonpool.pool.tombstones import DIGEST_BYTES, Tomb

GivenBack = Callable[[str, Iterable[bytes], float, int], None]


class Joins:
    """`term_raised(term, now)` ends what was promised under an older term. `given_back` are told
    which segments a node that joins lends no more: its name and their incarnations."""

    def __init__(
        self,
        catalog: Catalog,
        links: Links,
        agents: Agents,
        presence: Presence,
        outbox: list[Effect],
        instance: bytes,
        node_lease_ms: int,
        forget_ms: int,
        term_raised: Callable[[int, float], None],
        standby: Standby,
        restoring: Restoring,
    ) -> None:
        self._catalog = catalog
        self._links = links
        self._agents = agents
        self._presence = presence
        self._outbox = outbox
        self._instance = instance
        self._node_lease_ms = node_lease_ms
        self._forget_ms = forget_ms
        self._term_raised = term_raised
        self.standby = standby
        self._restoring = restoring
        self.elected = standby.going_on
        self.given_back: list[GivenBack] = []
        self.term_wanted = 0  # the lowest term under which a segment that was seen would obey

    def join(self, session: int, call: m.JoinSegment, now: float, wall_ms: int) -> None:
        segment = self._catalog.segments.find(call.endpoint.incarnation)
        if why := self._unfit(call, segment):
            self._outbox.append(Send(session, 0, m.Failure("bad_input", why)))
            return
        if segment is None:
            link = self._new(session, call, now)
        else:
            link = self._again(session, call, segment, now)
        if self.standby.going_on:
            self.standby.follow(link, call.follows)
        elif self.elected:
            # Terms come from the election: this one is over, or the segment is from elsewhere.
            self.term_wanted = max(self.term_wanted, call.term + 1)
            if call.term <= self._catalog.term:
                self._adopt(link, now, wall_ms)
        elif call.term > self._catalog.term or (
            call.term == self._catalog.term and not link.segment.known
        ):
            self.raise_term(call.term + 1, now, wall_ms)
        else:
            self._adopt(link, now, wall_ms)
        self._presence.heard(link, now)
        self._links.changed()
        for told in self.given_back:
            told(call.endpoint.node, call.given_back, now, wall_ms)

    def _new(self, session: int, call: m.JoinSegment, now: float) -> NodeLink:
        endpoint = call.endpoint
        segment = self._catalog.segments.add(
            endpoint.incarnation,
            endpoint.node,
            endpoint.host_id,
            endpoint.capacity_bytes,
            call.slots,
            endpoint.medium,
        )
        self._place(segment, endpoint)
        link = NodeLink(segment, endpoint, session, LinkState.ADOPTING, now)
        self._links.add(link)
        return link

    def _again(self, session: int, call: m.JoinSegment, segment: Segment, now: float) -> NodeLink:
        link = self._links[segment.id]
        if link.session is not None:
            self._presence.detach(link, now)
        link.endpoint, link.session = call.endpoint, session
        segment.gone = False  # its node said so, and died before it was
        self._place(segment, call.endpoint)
        return link

    def _place(self, segment: Segment, endpoint: m.SegmentEndpoint) -> None:
        domain = endpoint.labels.get(self._catalog.config.failure_domain, "")
        trust = endpoint.trust_domain
        serves = tenant_number(trust.decode()) if trust else -1
        segment.lies_at(endpoint.node, endpoint.host_id, domain, serves)

    def _unfit(self, call: m.JoinSegment, segment: Segment | None) -> str:
        endpoint = call.endpoint
        if len(endpoint.incarnation) != 16 or not 0 < call.slots <= m.SLOTS_MAX:
            return f"a segment of {call.slots} slots, incarnation {endpoint.incarnation.hex()}"
        if not 0 <= endpoint.capacity_bytes < 2**62 or not 0 <= call.term < 2**62:
            return f"capacity {endpoint.capacity_bytes}, term {call.term}"
        if why := self._stranger(endpoint.trust_domain):
            return why
        if segment is None and self._catalog.segments.full:
            return f"all {len(self._catalog.segments)} segments of this master are taken"
        if segment is not None and (segment.slots, segment.capacity_bytes) != (
            call.slots,
            endpoint.capacity_bytes,
        ):
            return f"segment {endpoint.incarnation.hex()} had another geometry before"
        return ""

    def _stranger(self, domain: bytes) -> str:
        """Why no segment may serve this tenant alone; empty: it may."""
        shares = self._catalog.rows.shares
        name = domain.decode(errors="replace")
        if not domain or (shares is not None and shares.tenants.named(name) is not None):
            return ""
        return f"the node serves tenant {name!r} alone, and this master's tenants file has none"

    def raise_term(self, term: int, now: float, wall_ms: int) -> None:
        """All reservations end, all segments are adopted again before anything is granted."""
        self._term_raised(term, now)
        for link in self._links:
            if link.session is not None:
                self._adopt(link, now, wall_ms)
        self._links.changed()

    def lead(self, term: int, now: float, wall_ms: int) -> None:
        """The end of standing by: all nodes are adopted; those whose changes were followed to the
        end tell only what has happened since."""
        self._term_raised(term, now)
        for link in self._links:
            if link.session is not None:
                self._adopt(link, now, wall_ms, self.standby.whole(link))
        self.standby.end()
        self._links.changed()

    def whole(self, link: NodeLink, now: float, wall_ms: int) -> None:
        """Its node is to tell all it holds, whatever the snapshot has of it."""
        self._adopt(link, now, wall_ms, -1)

    def _adopt(self, link: NodeLink, now: float, wall_ms: int, since: int | None = None) -> None:
        """`since`: what is known of it by following it; None: what the snapshot has of it."""
        if since is None:
            since = self._restoring.since(link)
        link.state = LinkState.ADOPTING
        link.segment.open = False
        link.heard_changes.clear()
        link.progress = self._catalog.inventory.begin(link.segment)
        link.ask_again = False
        assert link.session is not None
        adopt = m.Adopt(
            link.segment.id,
            self._catalog.term,
            self._instance,
            self._node_lease_ms,
            wall_ms,
            since,
            self._forget_ms,
        )
        # The agent may read this at any moment from now on and count its lease from then.
        link.lease_until = max(link.lease_until, now + self._presence.lease_s)
        self._outbox.append(Send(link.session, 0, adopt))

    def adopted(self, session: int, call: m.Adopted, now: float, wall_ms: int) -> list[Tomb]:
        """Tombstones that the agent brings."""
        link = self._links.spoken_for(session, call.segment, call.term)
        if link is None or link.state is not LinkState.ADOPTING:
            return []
        link.state = LinkState.REPORTING
        link.segment.open = link.segment.known
        self._presence.heard(link, now)
        self._agents.catch_up(link)
        if link.restore is not None:
            self._restoring.adopted(link, call)
        elif call.resumed and link.progress is not None:
            link.progress.expected.fill(-1)  # all is known, but what has changed since
        tombs = _tombs_of(call)
        self._agents.bury_tombs(tombs, None, now)
        self._agents.send_tombs(link, self._agents.tombstones.all(), [])
        return tombs


def _tombs_of(call: m.Adopted) -> list[Tomb]:
    terms, sequences = u64(call.tombstone_term), u64(call.tombstone_sequence)
    blob = call.tombstones.blob
    if len(blob) != DIGEST_BYTES * terms.size or terms.size != sequences.size:
        raise BadInput(f"{len(blob)} bytes of digests for {terms.size} tombstones")
    return [
        Tomb(blob[DIGEST_BYTES * i : DIGEST_BYTES * (i + 1)], term, sequence)
        for i, (term, sequence) in enumerate(zip(terms.tolist(), sequences.tolist(), strict=True))
    ]
