"""The master without I/O: messages in, effects out. It knows who is connected and passes on what
they say; each room beside it (`master_*.py`) answers for one concern.

Sessions are numbers given by the shell. Time is monotonic seconds, `wall_ms` is for TTLs and logs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from moonpool._core import Table
from moonpool.core.errors import BadInput, Refused
from moonpool.core.sections import MasterConfig
from moonpool.core.tenants import Tenants
from moonpool.pool import messages as m
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.effects import Effect, Send
from moonpool.pool.master_catalog import catalog_config
from moonpool.pool.master_copies import Copies
from moonpool.pool.master_counts import AnswerCounts
from moonpool.pool.master_events import Followers
from moonpool.pool.master_held import HeldCalls
from moonpool.pool.master_limits import SWEEP_S, MasterLimits
from moonpool.pool.master_nodes import Nodes
from moonpool.pool.master_orders import RetireOrders
from moonpool.pool.master_reading import Reading
from moonpool.pool.master_recovery import Recovery
from moonpool.pool.master_removals import Removals
from moonpool.pool.master_requests import Asked, Session, failure_of
from moonpool.pool.master_stat import catalog_counters, node_counters
from moonpool.pool.master_tasks import TaskRoom
from moonpool.pool.master_tiers import Tiering
from moonpool.pool.master_waits import KeyWaiters
from moonpool.pool.master_writing import Writing
from moonpool.pool.ports import Status
from moonpool.pool.snapshot.saved import Saved
from moonpool.pool.tenancy.gate import Gate
from moonpool.pool.tenancy.scope import enter
from moonpool.pool.tenancy.shares import Shares
from moonpool.pool.tenancy.visitor import visitor_named

_STALE = int(Status.STALE_TERM)


class MasterMachine:
    """One master. `instance` is its random identity; `nodes_expected` ends a recovery early.

    `first_term` must be above every term of earlier masters, also of those whose nodes are away
    when this one starts (the shell takes it from the wall clock). `saved`: a snapshot of an earlier
    master's catalog.
    """

    def __init__(
        self,
        config: MasterConfig,
        instance: bytes = b"",
        *,
        limits: MasterLimits | None = None,
        table: Table | None = None,
        seed: int | None = None,
        nodes_expected: int = 0,
        first_term: int = 1,
        stand_by: bool = False,
        tenants: Tenants | None = None,
        saved: Saved | None = None,
    ) -> None:
        self.config = config
        self.limits = limits or MasterLimits()
        self.instance = instance or bytes(16)
        self.requests = 0
        self.counts = AnswerCounts()
        self._outbox: list[Effect] = []
        self._sessions: dict[int, Session] = {}
        self._wall_offset_ms = 0.0
        self._next_sweep = 0.0
        self.leads_until = math.inf  # until then nobody else leads
        drawn = self._seed = int.from_bytes(self.instance, "little") if seed is None else seed
        self.shares = None if tenants is None else Shares(tenants)
        settings = catalog_config(config, self.limits)
        self.catalog = Catalog(settings, table, term=first_term, seed=drawn, shares=self.shares)
        self._make_rooms(nodes_expected, stand_by, saved)
        self._handlers = self._client_handlers()
        self._node_handlers = self._handlers_of_nodes()

    def _make_rooms(self, nodes_expected: int, stand_by: bool, saved: Saved | None) -> None:
        config, limits, catalog, outbox = self.config, self.limits, self.catalog, self._outbox
        self._orders = RetireOrders(limits.retire_waits_max, outbox)
        self.nodes = Nodes(
            config,
            catalog,
            self._orders,
            outbox,
            self.instance,
            limits.tombstones_max,
            self._raise_term,
            stand_by,
            saved,
        )
        self.standby = self.nodes.standby
        links, agents = self.nodes.links, self.nodes.agents
        self.recovery = Recovery(config, catalog, links, nodes_expected)
        self._removals = Removals(catalog, links, agents, self._orders, self.recovery.strangers)
        self._waiters = KeyWaiters(limits.waiters_max, outbox)
        self._writing = Writing(
            catalog, links, agents, self._removals, self._waiters, config.reservation_ms
        )
        step, removals = limits.copied_rows_a_step, self._removals
        self._copies = Copies(config, catalog, links, agents, removals, outbox, step, self._seed)
        self.nodes.joins.given_back.append(self._copies.given_back)
        self.tiering = Tiering(config, catalog, self._copies, self._removals)
        self.tasks = TaskRoom(catalog, links, self._copies, step)
        self._reading = Reading(catalog, links, agents, self.recovery)
        self._held = HeldCalls(catalog, self._writing.recovering, limits.held_puts_max, outbox)
        self._followers = Followers(catalog.events, limits.followers_max, outbox)
        self._gate = None
        if self.shares is not None:
            bound, refused = config.inflight_bytes_max, self._writing.throttled
            self._gate = Gate(self.shares, bound, self._writing.reserve, refused, self._send)

    def _client_handlers(self) -> dict[type[Any], Callable[[Asked, Any], m.Reply | None]]:
        return {
            m.Reserve: self._writing.reserve,
            m.Commit: self._writing.commit,
            m.Abort: self._writing.abort,
            m.Reoffer: self._writing.reoffer,
            m.Await: self._writing.wait,
            m.Lookup: self._reading.lookup,
            m.Exists: self._reading.exists,
            m.List: self._reading.list_objects,
            m.Topology: self._reading.topology,
            m.Lease: self._reading.lease,
            m.Touch: self.counts.touch,
            m.Report: self._reading.report,
            m.Remove: self._removals.remove,
            m.RemovePrefix: self._removals.remove_prefix,
            m.RemoveWhere: self._removals.remove_where,
            m.EventsFrom: self._followers.follow,
            m.Drain: self._copies.drain,
            **self.tasks.handlers(),
            m.Stat: self._stat,
        }

    def _handlers_of_nodes(self) -> dict[type[Any], Callable[[int, Any, float, int], None]]:
        return {
            m.JoinSegment: self.nodes.joins.join,
            m.Adopted: self._adopted,
            m.InventoryChunk: self.nodes.chunk,
            m.Changed: self.nodes.changed,
            m.Heartbeat: self.nodes.reports.heartbeat,
            m.RetireDone: self._retire_done,
            m.Copied: self._copies.copied,
            m.Leaving: self._copies.leaving,
        }

    # The lead.

    def lead(self, term: int, nodes: set[str] | None, now: float, wall_ms: int) -> list[Effect]:
        """Stop standing by: rule under `term`. `nodes` were the last leader's: clients may still
        read from them, so puts and removals wait until all of them have been heard, or are surely
        not readable any more. None: not known, so that the grace time must pass."""
        if nodes is not None:
            here = {link.endpoint.node for link in self.nodes.links if link.session is not None}
            self.recovery.expect(nodes | here)
        self.nodes.joins.lead(term, now, wall_ms)
        return self._flush(now)

    def raise_term(self, term: int, now: float, wall_ms: int) -> list[Effect]:
        """Rule under a higher term, which the election gave, from now on."""
        self.nodes.joins.raise_term(term, now, wall_ms)
        return self._flush(now)

    @property
    def known_nodes(self) -> list[str]:
        """Nodes whose memory clients of this master may be reading."""
        heard = {link.endpoint.node for link in self.nodes.links if not link.lost}
        return sorted(heard | self.recovery.awaited)

    @property
    def recovering(self) -> bool:
        return self.recovery.going_on

    @property
    def restoring(self) -> bool:
        """There are pieces of a snapshot to be taken in, by `restore`."""
        return self.nodes.restoring.going_on

    def restore(self, now: float, wall_ms: int) -> list[Effect]:
        self.nodes.restore(now, wall_ms)
        return self._flush(now)

    # Events from the shell.

    def connected(
        self,
        session: int,
        role: Literal["client", "node"],
        name: str,
        host_id: str,
        now: float,
        tenant: str = "",
    ) -> list[Effect]:
        """`tenant`: whose token it showed, empty: the cluster's."""
        self._sessions[session] = Session(role, name, host_id, visitor_named(self.shares, tenant))
        return self._flush(now)

    def disconnected(self, session: int, now: float) -> list[Effect]:
        """Idempotent. A client's reservations, leases and waits end; a node's segments are away."""
        if self._sessions.pop(session, None) is not None:
            self.nodes.presence.session_lost(session, now)
            self._waiters.forget_session(session)
            self._held.forget_session(session)
            self._followers.forget_session(session)
            if self._gate is not None:
                self._gate.forget_session(session)
            self._writing.ended(self.catalog.end_owner(session, now), now)
        return self._flush(now)

    def handle(
        self,
        session: int,
        request_id: int,
        message: m.Message,
        now: float,
        wall_ms: int,
        deadline_ms: int = 0,
    ) -> list[Effect]:
        """One message. Malformed requests are answered Failure and change nothing."""
        self.requests += 1
        self._wall_offset_ms = wall_ms - now * 1000
        known = self._sessions.get(session)
        if known is None:
            return []
        try:
            if known.role == "node":
                self._from_node(session, message, now, wall_ms)
            else:
                asked = Asked(session, request_id, known.host_id, now, wall_ms, known.visitor)
                if self.shares is not None:
                    message = enter(known.visitor, message, self.catalog)
                self._from_client(asked, message, deadline_ms)
        except (ValueError, IndexError, Refused) as error:
            self._outbox.append(Send(session, request_id, failure_of(error)))
        return self._flush(now)

    def tick(self, now: float, wall_ms: int | None = None) -> list[Effect]:
        wall = self._wall_ms(now) if wall_ms is None else wall_ms
        if self.standby.going_on:
            return self._flush(now)
        self._writing.tick(now)
        self.catalog.leases.expire(now)
        self.catalog.unpin(now)
        self.nodes.presence.tick(now, wall, sure=now < self.leads_until)
        self._orders.expire(now)
        if not self.recovering:
            for room in (self._copies, self.tasks, self.tiering):
                room.tick(now, wall)
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_S
            before = self.catalog.events.next_sequence
            expired = self.catalog.sweep(now, wall)
            self._removals.follow(expired, self.catalog.events.keys_since(before))
        self._held.expire(now, wall)
        self._followers.expire(now)
        if self._gate is not None:
            self._gate.expire(now)
        return self._flush(now)

    def next_deadline(self) -> float | None:
        """When `tick` is due."""
        if self.standby.going_on:
            return None
        moments = [
            self._writing.next_deadline(),
            self.catalog.leases.next_deadline,
            self.catalog.rows.standing.next_deadline,
            self._orders.next_deadline,
            self.nodes.presence.next_deadline(),
            self._held.next_deadline,
            self._followers.next_deadline,
            self.recovery.next_deadline,
            self._next_sweep if self.catalog.rows.may_expire else None,
            self._gate.next_deadline if self._gate is not None else None,
        ]
        if not self.recovering:
            moments += [one.next_deadline() for one in (self._copies, self.tasks, self.tiering)]
        return min((moment for moment in moments if moment is not None), default=None)

    def _flush(self, now: float) -> list[Effect]:
        if not self.standby.going_on and self.recovery.over(now):
            for held in self._held.take_all():
                self._answer(held.asked._replace(now=now, wall_ms=self._wall_ms(now)), held.message)
        if self._gate is not None and len(self._gate):
            self._gate.pump(now, self._wall_ms(now))
        self._followers.flush()
        outbox = self._outbox
        if not outbox:
            return []
        effects = [effect for effect in outbox if effect.request_id or self._hears(effect)]
        outbox.clear()
        for effect in effects:
            if effect.request_id:  # also what was answered late, by whoever waited for it
                self.counts.answered(effect.message)
        return effects

    def _hears(self, effect: Effect) -> bool:
        """Nodes are told things; a client that asked under number 0 wants no answer, ever."""
        session = self._sessions.get(effect.session)
        return session is None or session.role != "client"

    def _wall_ms(self, now: float) -> int:
        return round(now * 1000 + self._wall_offset_ms)

    # Messages of clients.

    def _from_client(self, asked: Asked, message: m.Message, deadline_ms: int) -> None:
        if type(message) not in self._handlers:
            raise BadInput(f"a client cannot send {type(message).__name__}")
        if refusal := self._refuse(asked, message):
            self._send(asked, refusal)
            return
        touches = getattr(message, "touches", None)
        if touches is not None and touches.row:
            self.counts.read(*self._reading.apply(touches, asked.host_id, asked.now))
        if not self.recovery.going_on or not self._held.hold(asked, message, deadline_ms):
            self._answer(asked, message)

    def _refuse(self, asked: Asked, message: m.Message) -> m.Failure | None:
        """Whoever stands by answers nobody; a lease has nothing but this master's word, which is
        worth nothing once another one may lead."""
        if self.standby.going_on and not isinstance(message, m.Stat):
            where = f"; the leader is {self.standby.leader}" if self.standby.leader else ""
            return m.Failure("not_leader", f"this master stands by{where}")
        if asked.now >= self.leads_until and isinstance(message, m.Lease) and message.ttl_ms > 0:
            return m.Failure("not_leader", "this master cannot tell whether it still leads")
        return None

    def _answer(self, asked: Asked, message: m.Message) -> None:
        """Now, unless the room that handles it answers later."""
        if self._gate is not None and isinstance(message, m.Reserve):
            self._gate.ask(asked, message)
            return
        try:
            reply = self._handlers[type(message)](asked, message)
        except (ValueError, IndexError) as error:
            reply = failure_of(error)
        if reply is not None:
            self._send(asked, reply)

    def _send(self, asked: Asked, reply: m.Reply) -> None:
        self._outbox.append(Send(asked.session, asked.request, reply))

    def _stat(self, asked: Asked, call: m.Stat) -> m.Status:
        if self.shares is not None and not asked.visitor.operator:
            mine = self.shares.stat_of(asked.visitor.tenant)
            return m.Status({"recovering": self.recovering, "tenants": {asked.visitor.name: mine}})
        return m.Status(
            {
                **catalog_counters(self.catalog),
                **node_counters(self.nodes),
                **self.tiering.stat(),
                "recovering": self.recovering,
                "stands_by": self.standby.going_on,
                "followed_changes": self.standby.changes,
                "waiters": self._waiters.pairs,
                "held_puts": len(self._held),
                "throttled_puts": len(self._gate) if self._gate is not None else 0,
                "tasks": len(self.tasks.book.running),
                **self._orders.stat(),
                "sessions": len(self._sessions),
                "requests": self.requests,
                **self.counts.stat(),
            }
        )

    # Messages of nodes.

    def _from_node(self, session: int, message: m.Message, now: float, wall_ms: int) -> None:
        handler = self._node_handlers.get(type(message))
        if handler is None:
            raise BadInput(f"a node cannot send {type(message).__name__}")
        handler(session, message, now, wall_ms)

    def _adopted(self, session: int, call: m.Adopted, now: float, wall_ms: int) -> None:
        if self.nodes.joins.adopted(session, call, now, wall_ms):
            self._removals.remove_dead(now, wall_ms)

    def _retire_done(self, session: int, call: m.RetireDone, now: float, wall_ms: int) -> None:
        link = self.nodes.links.get(call.segment)
        # An agent that obeys a later master retires nothing for this one: not done, whoever asks.
        if link is not None and link.session == session and _STALE not in call.status:
            self._orders.finish(call.id, call.segment)

    def _raise_term(self, term: int, now: float) -> None:
        self._copies.cancel_all()
        self._writing.ended(self.catalog.raise_term(term, now), now)
