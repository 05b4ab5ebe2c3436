"""The prefill rank's side of every transfer, as a pure machine: time is an argument, what it wants
done comes back as actions.

    EXPECTED ──open──> HELD <──open── (new)        decode asked / the request is here
        │               │
        └───both─────> PUSHING                     layers go out as they are computed
                        │
        all pushed ─────┼──> done                  Complete; blocks released
        abort, failure, │
        lease, cancel ──┴──> CLOSING ──> done      no new push; blocks released when none is left

Blocks are released only when no push of theirs is in flight. A push that does not end well ends
its whole session: only then is it certain that decode withdraws the memory it went to.
"""

from collections import OrderedDict
from enum import StrEnum
from typing import Final

from moonpool.transfer.handoff import messages as m
from moonpool.transfer.handoff.actions import Drop, PrefillAction, Push, Release, Send, Times

TRANSFERS_MAX: Final = 4096
PUSHES_MAX: Final = 256
FORGET_AFTER: Final = 8192


class ExportState(StrEnum):
    """See the top of this file."""

    EXPECTED = "EXPECTED"
    HELD = "HELD"
    PUSHING = "PUSHING"
    CLOSING = "CLOSING"


class Export:
    """One transfer at the prefill rank. `upto`, `started` and `arrived` count, per layer, tokens
    computed, given to a push, and confirmed."""

    def __init__(self, transfer: str, layers: int, due_s: float) -> None:
        self.transfer = transfer
        self.state = ExportState.EXPECTED
        self.due_s = due_s
        self.tokens = 0
        self.prompt = ""
        self.local = False
        self.session: int | None = None
        self.announce: m.Announce | None = None
        self.upto = [0] * layers
        self.started = [0] * layers
        self.arrived = [0] * layers
        self.in_flight: dict[int, Push] = {}
        self.why = ("", "")

    @property
    def complete(self) -> bool:
        return all(count >= self.tokens for count in self.arrived)


class Session:
    """One decode rank. Pushes end at multiples of `step_tokens`, but for the last."""

    def __init__(self, step_tokens: int, now_s: float) -> None:
        self.step_tokens = step_tokens
        self.heard_s = now_s
        self.beat_s = now_s
        self.exports: dict[str, Export] = {}
        self.pushes = 0

    def beat(self) -> m.Beat:
        told = [export.announce is not None for export in self.exports.values()]
        return m.Beat(
            tuple(transfer for transfer, yes in zip(self.exports, told, strict=True) if yes),
            tuple(transfer for transfer, yes in zip(self.exports, told, strict=True) if not yes),
        )


class PrefillMachine:
    """Every call returns the actions it leads to. `layers` is what the model has."""

    def __init__(self, layers: int, times: Times | None = None) -> None:
        self.layers = layers
        self.times = times or Times()
        self.exports: dict[str, Export] = {}
        self._sessions: dict[int, Session] = {}
        self._closed: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._pushes: dict[int, Export] = {}
        self._next_push = 1
        self._out: list[PrefillAction] = []

    # ---- the engine's side ----

    def open(
        self, transfer: str, tokens: int, now_s: float, prompt: str = ""
    ) -> list[PrefillAction]:
        """The request is here; its prompt has so many tokens, and `prompt` is a digest of them. A
        transfer that ended before, or one too many, is released at once: whoever wants it computes
        it itself."""
        export = self.exports.get(transfer)
        if transfer in self._closed or (export is not None and export.local):
            code, text = self._closed.get(transfer, ("bad_input", "this transfer id is in use"))
            return [Release(transfer, False, code, text)]
        if export is None:
            if len(self.exports) >= TRANSFERS_MAX:
                return [Release(transfer, False, "busy", f"{TRANSFERS_MAX} transfers are held")]
            export = self._new(transfer, now_s + self.times.hold_s)
        export.local = True
        export.tokens, export.prompt = tokens, prompt
        if export.state is ExportState.EXPECTED:
            export.state = ExportState.HELD
        if export.session is not None:
            export.due_s = now_s + self.times.lease_s
        self._both(export)
        return self._done()

    def computed(self, transfer: str, layer: int, upto: int, now_s: float) -> list[PrefillAction]:
        """Tokens before `upto` of this layer stand in the blocks of this transfer."""
        export = self.exports.get(transfer)
        if export is None or export.state is ExportState.CLOSING:
            return []
        export.upto[layer] = max(export.upto[layer], min(upto, export.tokens))
        if export.session is not None:
            self._pump(self._sessions[export.session], export)
        return self._done()

    def close(self, transfer: str, code: str, text: str, now_s: float) -> list[PrefillAction]:
        """The request failed or was aborted here; blocks are free once Release says so. Also for
        one that never came this far, so that decode need not wait for it."""
        export = self.exports.get(transfer)
        if export is None:
            self._remember(transfer, code, text)
        else:
            self._end(export, code, text)
        return self._done()

    def pushed(self, push: int, ok: bool, text: str, now_s: float) -> list[PrefillAction]:
        """A push has ended; `ok` says that all its bytes are in decode's memory."""
        export = self._pushes.pop(push)
        done = export.in_flight.pop(push)
        session = self._sessions.get(done.session)
        if session is not None:
            session.pushes -= 1
        if ok and export.state is ExportState.PUSHING:
            export.arrived[done.layer] = max(export.arrived[done.layer], done.last)
            self._tell(export, m.Layer(export.transfer, done.layer, export.arrived[done.layer]))
        if not ok and session is not None:
            self._lose(done.session, "unreachable", f"a push failed: {text}")
        self._settle(export)
        if session is not None:
            for other in list(session.exports.values()):
                self._pump(session, other)
        return self._done()

    # ---- decode's side ----

    def session_up(self, session: int, step_tokens: int, now_s: float) -> None:
        """A decode rank was let in."""
        self._sessions[session] = Session(step_tokens, now_s)

    def session_gone(self, session: int, now_s: float) -> list[PrefillAction]:
        """Its connection broke."""
        self._lose(session, "unreachable", "the decode worker is gone", drop=False)
        return self._done()

    def handle(self, session: int, message: m.ToPrefill, now_s: float) -> list[PrefillAction]:
        here = self._sessions.get(session)
        if here is None:
            return []
        here.heard_s = now_s
        if isinstance(message, m.Beat):
            for transfer in message.active:
                if (export := here.exports.get(transfer)) and export.local:
                    export.due_s = now_s + self.times.lease_s
        elif isinstance(message, m.Cancel):
            self._cancel(session, message.transfer)
        else:
            self._wanted(session, here, message, now_s)
        return self._done()

    def tick(self, now_s: float) -> list[PrefillAction]:
        """What time has brought about; call at next_s() or earlier."""
        for number, session in list(self._sessions.items()):
            if now_s - session.heard_s >= self.times.lease_s:
                silent = f"the decode worker was silent for {now_s - session.heard_s:.1f} s"
                self._lose(number, "unreachable", silent)
            elif now_s >= session.beat_s:
                session.beat_s = now_s + self.times.beat_s
                self._out.append(Send(number, session.beat()))
        for export in list(self.exports.values()):
            if export.state is not ExportState.CLOSING and now_s >= export.due_s:
                self._end(export, "deadline_exceeded", _EXPIRED[export.state])
        return self._done()

    def next_s(self) -> float:
        """The moment at which tick() is due; infinity when nothing waits for time."""
        moments = [min(s.beat_s, s.heard_s + self.times.lease_s) for s in self._sessions.values()]
        moments += [
            export.due_s
            for export in self.exports.values()
            if export.state is not ExportState.CLOSING
        ]
        return min(moments, default=float("inf"))

    # ---- inside ----

    def _wanted(
        self, number: int, session: Session, message: m.Claim | m.Announce, now_s: float
    ) -> None:
        transfer = message.transfer
        export = self.exports.get(transfer)
        if export is None:
            why = self._closed.get(transfer)
            if why is None and len(self.exports) >= TRANSFERS_MAX:
                why = ("busy", f"{TRANSFERS_MAX} transfers are held")
            if why is not None:
                self._out.append(Send(number, m.Ended(transfer, *why, quiet=True)))
                return
            export = self._new(transfer, now_s + self.times.expect_s)
        if export.session not in (None, number) or export.state is ExportState.CLOSING:
            why = export.why if export.why[0] else ("refused", "another decode worker has it")
            quiet = export.session != number or not export.in_flight
            self._out.append(Send(number, m.Ended(transfer, *why, quiet=quiet)))
            return
        export.session = number
        session.exports[transfer] = export
        if export.local:
            export.due_s = now_s + self.times.lease_s
        if isinstance(message, m.Announce) and export.announce is None:
            export.announce = message
        self._both(export)

    def _both(self, export: Export) -> None:
        """Begins to push once the request and its target are known."""
        told = export.announce
        if not export.local or told is None or export.state is not ExportState.HELD:
            return
        if told.tokens != export.tokens or not 0 <= told.first_token <= export.tokens:
            text = f"decode wants tokens {told.first_token}..{told.tokens} of {export.tokens}"
            self._end(export, "bad_input", text)
            return
        if told.prompt and export.prompt and told.prompt != export.prompt:
            self._end(export, "bad_input", "decode has another prompt under this transfer id")
            return
        export.state = ExportState.PUSHING
        export.started = [told.first_token] * self.layers
        export.arrived = [told.first_token] * self.layers
        assert export.session is not None
        self._pump(self._sessions[export.session], export)
        self._settle(export)

    def _pump(self, session: Session, export: Export) -> None:
        if export.state is not ExportState.PUSHING or export.session is None:
            return
        for layer, upto in enumerate(export.upto):
            first = export.started[layer]
            last = upto if upto >= export.tokens else upto - upto % session.step_tokens
            if last <= first:
                continue
            if session.pushes >= PUSHES_MAX:
                return
            push = Push(self._next_push, export.session, export.transfer, layer, first, last)
            self._next_push += 1
            session.pushes += 1
            export.started[layer] = last
            export.in_flight[push.push] = push
            self._pushes[push.push] = export
            self._out.append(push)

    def _cancel(self, session: int, transfer: str) -> None:
        export = self.exports.get(transfer)
        if export is not None and export.session in (None, session):
            here = self._sessions[session]
            export.session = session
            here.exports[transfer] = export
            self._end(export, "cancelled", "decode does not want it any more")
            return
        # Not ours, or not any more: no push of it can be in flight on a session that lives.
        if export is None:
            self._remember(transfer, "cancelled", "decode does not want it any more")
        gone = m.Ended(transfer, "cancelled", "nothing of it is held here", quiet=True)
        self._out.append(Send(session, gone))

    def _lose(self, number: int, code: str, text: str, drop: bool = True) -> None:
        session = self._sessions.pop(number, None)
        if session is None:
            return
        if drop:
            self._out.append(Drop(number, text))
        for export in list(session.exports.values()):
            export.session = None
            self._end(export, code, text)

    def _end(self, export: Export, code: str, text: str) -> None:
        if export.state is not ExportState.CLOSING:
            export.state = ExportState.CLOSING
            export.why = (code, text)
            if export.in_flight:
                self._tell(export, m.Ended(export.transfer, code, text, quiet=False))
        self._settle(export)

    def _settle(self, export: Export) -> None:
        """Takes the last step once no push is left."""
        if export.in_flight or export.transfer not in self.exports:
            return
        if export.state is ExportState.PUSHING and export.complete:
            self._tell(export, m.Complete(export.transfer))
            self._forget(export, "", "")
        elif export.state is ExportState.CLOSING:
            self._tell(export, m.Ended(export.transfer, *export.why, quiet=True))
            self._forget(export, *export.why)

    def _forget(self, export: Export, code: str, text: str) -> None:
        del self.exports[export.transfer]
        if export.session is not None:
            del self._sessions[export.session].exports[export.transfer]
        self._remember(export.transfer, code or "done", text)
        if export.local:
            self._out.append(Release(export.transfer, not code, code, text))

    def _remember(self, transfer: str, code: str, text: str) -> None:
        self._closed[transfer] = (code, text)
        if len(self._closed) > FORGET_AFTER:
            self._closed.popitem(last=False)

    def _new(self, transfer: str, due_s: float) -> Export:
        export = self.exports[transfer] = Export(transfer, self.layers, due_s)
        return export

    def _tell(self, export: Export, message: m.ToDecode) -> None:
        if export.session is not None:
            self._out.append(Send(export.session, message))

    def _done(self) -> list[PrefillAction]:
        out, self._out = self._out, []
        return out


_EXPIRED: Final = {
    ExportState.EXPECTED: "no request with this transfer id came to the prefill worker",
    ExportState.HELD: "no decode worker came for it, or it stopped renewing its lease",
    ExportState.PUSHING: "decode stopped renewing its lease",
}
