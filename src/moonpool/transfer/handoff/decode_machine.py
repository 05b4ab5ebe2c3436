"""The decode rank's side of every transfer, as a pure machine. A transfer has one leg for each
prefill rank it comes from:

    QUEUED ──session up──> CLAIMED ──announce──> ANNOUNCED ─Complete─> VERIFYING ──> QUIET
       │                      │                     │                                ^
       └──────────────────────┴── no blocks told ───┼────────────────────────────────┤
                                                    └─> REVOKING ── Ended(quiet) ────┤
                                                            └── fence: Revoke ───────┘

Blocks are told to prefill from ANNOUNCED on. From there only three things make a leg QUIET:
Complete, Ended with `quiet`, or the session's memory withdrawn at this end. A transfer is Settled
when all its legs are QUIET; before that its blocks must not be reused.
"""

from enum import StrEnum
from typing import Final

from moonpool.transfer.handoff import messages as m
from moonpool.transfer.handoff.actions import (
    DecodeAction,
    Progress,
    Revoke,
    Send,
    Settled,
    Times,
    Verify,
)

TRANSFERS_MAX: Final = 4096


class LegState(StrEnum):
    """See the top of this file."""

    QUEUED = "QUEUED"
    CLAIMED = "CLAIMED"
    ANNOUNCED = "ANNOUNCED"
    REVOKING = "REVOKING"
    VERIFYING = "VERIFYING"
    QUIET = "QUIET"


class Leg:
    """What one prefill rank owes. `due_s`: the lease, or the fence while REVOKING."""

    def __init__(self, layers: int) -> None:
        self.state = LegState.QUEUED
        self.due_s = float("inf")
        self.upto = [0] * layers


class Import:
    """One transfer at the decode rank."""

    def __init__(self, transfer: str) -> None:
        self.transfer = transfer
        self.legs: dict[int, Leg] = {}
        self.announce: m.Announce | None = None
        self.why: tuple[str, str] | None = None
        self.told = [0]


class Session:
    """One prefill rank: not up yet, up, or being revoked."""

    def __init__(self) -> None:
        self.up = False
        self.revoking = False
        self.heard_s = 0.0
        self.beat_s = 0.0
        self.imports: dict[str, Import] = {}


class DecodeMachine:
    """Every call returns the actions it leads to."""

    def __init__(self, layers: int, times: Times | None = None) -> None:
        self.layers = layers
        self.times = times or Times()
        self.imports: dict[str, Import] = {}
        self._sessions: dict[int, Session] = {}
        self._out: list[DecodeAction] = []

    # ---- the engine's side ----

    def session_new(self, session: int) -> None:
        """The shell begins to connect; session_up() or session_gone() follows."""
        self._sessions[session] = Session()

    def claim(self, transfer: str, sessions: tuple[int, ...], now_s: float) -> list[DecodeAction]:
        """Decode will want this transfer, and has no blocks for it yet."""
        found = self._add(transfer, sessions)
        if found is not None:
            for number in found.legs:
                self._say(number, found, now_s)
        return self._done()

    def announce(
        self,
        transfer: str,
        sessions: tuple[int, ...],
        first_token: int,
        tokens: int,
        blocks: bytes,
        now_s: float,
        prompt: str = "",
    ) -> list[DecodeAction]:
        """Blocks are reserved for tokens `first_token`.. of a prompt of `tokens`. They belong to
        the transfer until it is Settled."""
        found = self.imports.get(transfer) or self._add(transfer, sessions)
        if found is not None and found.announce is None and found.why is None:
            found.announce = m.Announce(transfer, first_token, tokens, blocks, prompt)
            found.told = [first_token] * self.layers
            for leg in found.legs.values():
                leg.upto = [first_token] * self.layers
            for number in list(found.legs):
                self._say(number, found, now_s)
        return self._done()

    def cancel(self, transfer: str, code: str, text: str, now_s: float) -> list[DecodeAction]:
        """Not wanted any more; Settled follows, at once or after the fence."""
        found = self.imports.get(transfer)
        if found is not None:
            self._fail(found, code, text, now_s)
        return self._done()

    # ---- prefill's side ----

    def session_up(self, session: int, now_s: float) -> list[DecodeAction]:
        here = self._sessions.get(session)
        if here is None:  # given up while it was being connected
            return []
        here.up = True
        here.heard_s = here.beat_s = now_s
        for found in list(here.imports.values()):
            self._say(session, found, now_s)
        return self._done()

    def session_gone(self, session: int, code: str, text: str, now_s: float) -> list[DecodeAction]:
        """The session is closed and its memory withdrawn: nothing can be written through it."""
        here = self._sessions.pop(session, None)
        if here is None:
            return []
        for found in list(here.imports.values()):
            self._quiet(session, found)
            self._fail(found, code, text, now_s)
        return self._done()

    def handle(self, session: int, message: m.ToDecode, now_s: float) -> list[DecodeAction]:
        here = self._sessions.get(session)
        if here is None or here.revoking:
            return []
        here.heard_s = now_s
        if isinstance(message, m.Beat):
            self._renew(session, here, message, now_s)
            return self._done()
        found = here.imports.get(message.transfer)
        leg = found.legs.get(session) if found is not None else None
        if found is None or leg is None:
            return self._done()
        if isinstance(message, m.Layer):
            self._progress(found, leg, message)
        elif isinstance(message, m.Complete):
            self._complete(session, found, leg, message)
        else:
            if message.quiet:
                self._quiet(session, found)
            self._fail(found, message.code, message.text, now_s)
        return self._done()

    def verified(self, session: int, transfer: str, ok: bool, now_s: float) -> list[DecodeAction]:
        """The answer to Verify."""
        found = self.imports.get(transfer)
        if found is None or found.legs[session].state is not LegState.VERIFYING:
            return []
        self._quiet(session, found)
        if not ok:
            self._fail(found, "corrupt", "the bytes that arrived have another checksum", now_s)
        self._finish(found)
        return self._done()

    def tick(self, now_s: float) -> list[DecodeAction]:
        """What time has brought about; call at next_s() or earlier."""
        for number, session in list(self._sessions.items()):
            if not session.up or session.revoking:
                continue
            if now_s - session.heard_s >= self.times.lease_s:
                silent = f"the prefill worker was silent for {now_s - session.heard_s:.1f} s"
                self._revoke(number, silent)
            else:
                self._look(number, session, now_s)
        return self._done()

    def next_s(self) -> float:
        """The moment at which tick() is due; infinity when nothing waits for time."""
        due = float("inf")
        for session in self._sessions.values():
            if session.up and not session.revoking:
                due = min(due, session.beat_s, session.heard_s + self.times.lease_s)
        for found in self.imports.values():
            due = min([due] + [leg.due_s for leg in found.legs.values()])
        return due

    # ---- inside ----

    def _add(self, transfer: str, sessions: tuple[int, ...]) -> Import | None:
        if transfer in self.imports:
            return None
        if len(self.imports) >= TRANSFERS_MAX:
            self._out.append(
                Settled(transfer, False, "busy", f"{TRANSFERS_MAX} transfers are under way")
            )
            return None
        found = self.imports[transfer] = Import(transfer)
        for number in sessions:
            leg = found.legs[number] = Leg(self.layers)
            here = self._sessions.get(number)
            if here is None or here.revoking:
                leg.state = LegState.QUIET
                found.why = ("unreachable", "the prefill worker is gone")
            else:
                here.imports[transfer] = found
        if found.why is not None:
            self._fail(found, *found.why, now_s=0.0)
            return None
        return found

    def _say(self, number: int, found: Import, now_s: float) -> None:
        """Tells the prefill rank what it has not been told yet."""
        leg, here = found.legs[number], self._sessions.get(number)
        if here is None or not here.up or here.revoking:
            return
        if leg.state is LegState.QUEUED:
            leg.state = LegState.CLAIMED
            leg.due_s = now_s + self.times.lease_s
            if found.announce is None:
                self._out.append(Send(number, m.Claim(found.transfer)))
        if leg.state is LegState.CLAIMED and found.announce is not None:
            leg.state = LegState.ANNOUNCED
            leg.due_s = now_s + self.times.lease_s
            self._out.append(Send(number, found.announce))

    def _renew(self, number: int, here: Session, beat: m.Beat, now_s: float) -> None:
        for names, state in ((beat.active, LegState.ANNOUNCED), (beat.claimed, LegState.CLAIMED)):
            for transfer in names:
                found = here.imports.get(transfer)
                if found is not None and found.legs[number].state is state:
                    found.legs[number].due_s = now_s + self.times.lease_s

    def _progress(self, found: Import, leg: Leg, message: m.Layer) -> None:
        if leg.state is not LegState.ANNOUNCED or not 0 <= message.layer < self.layers:
            return
        leg.upto[message.layer] = max(leg.upto[message.layer], message.upto)
        upto = min(one.upto[message.layer] for one in found.legs.values())
        if upto > found.told[message.layer]:
            found.told[message.layer] = upto
            self._out.append(Progress(found.transfer, message.layer, upto))

    def _complete(self, session: int, found: Import, leg: Leg, message: m.Complete) -> None:
        if leg.state is LegState.ANNOUNCED and message.crcs:
            leg.state = LegState.VERIFYING
            leg.due_s = float("inf")
            self._out.append(Verify(session, found.transfer, message.crcs))
        elif leg.state in (LegState.ANNOUNCED, LegState.REVOKING):
            self._quiet(session, found)
            self._finish(found)

    def _look(self, number: int, session: Session, now_s: float) -> None:
        if now_s >= session.beat_s:
            session.beat_s = now_s + self.times.beat_s
            wanted = [t for t, found in session.imports.items() if found.why is None]
            self._out.append(Send(number, m.Beat(tuple(wanted))))
        for found in list(session.imports.values()):
            leg = found.legs[number]
            if now_s < leg.due_s:
                continue
            if leg.state is LegState.REVOKING:
                self._revoke(number, "prefill did not say in time that its pushes have ended")
                return
            text = "the prefill worker does not stand by this transfer any more"
            self._fail(found, "deadline_exceeded", text, now_s)

    def _revoke(self, number: int, text: str) -> None:
        self._sessions[number].revoking = True
        for found in self._sessions[number].imports.values():
            found.legs[number].due_s = float("inf")
        self._out.append(Revoke(number, text))

    def _fail(self, found: Import, code: str, text: str, now_s: float) -> None:
        """Ends every leg: at once where no blocks were told, else by asking and the fence."""
        if found.why is None:
            found.why = (code, text)
        for number, leg in list(found.legs.items()):
            if leg.state in (LegState.QUEUED, LegState.CLAIMED, LegState.VERIFYING):
                if leg.state is LegState.CLAIMED:
                    self._out.append(Send(number, m.Cancel(found.transfer)))
                self._quiet(number, found)
            elif leg.state is LegState.ANNOUNCED:
                leg.state = LegState.REVOKING
                here = self._sessions.get(number)
                if here is not None and here.up and not here.revoking:
                    leg.due_s = now_s + self.times.fence_s
                    self._out.append(Send(number, m.Cancel(found.transfer)))
        self._finish(found)

    def _quiet(self, number: int, found: Import) -> None:
        leg = found.legs[number]
        leg.state = LegState.QUIET
        leg.due_s = float("inf")
        here = self._sessions.get(number)
        if here is not None:
            here.imports.pop(found.transfer, None)

    def _finish(self, found: Import) -> None:
        if found.transfer not in self.imports:
            return
        if any(leg.state is not LegState.QUIET for leg in found.legs.values()):
            return
        del self.imports[found.transfer]
        code, text = found.why or ("", "")
        self._out.append(Settled(found.transfer, found.why is None, code, text))

    def _done(self) -> list[DecodeAction]:
        out, self._out = self._out, []
        return out
