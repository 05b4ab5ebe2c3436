"""Whether a peer that is asked now and then still answers. Pure: moments are arguments."""

from enum import StrEnum


class Verdict(StrEnum):
    """What a look says: ASK now, WAIT for the answer or for the time to ask, or it HANGS."""

    ASK = "ask"
    WAIT = "wait"
    HANGS = "hangs"


class Pulse:
    """Asks every `every_s`; an answer that takes `patience_s` is none.

    Time that this process itself did not run says nothing of the peer: a look that comes more than
    `every_s` late gives it that time back. From the moment that the peer stops it takes at most
    `every_s` until it is asked, and `patience_s` more until a look can say so.
    """

    def __init__(self, every_s: float, patience_s: float, now_s: float) -> None:
        self._every_s = every_s
        self._patience_s = patience_s
        self._ask_s = now_s
        self._asked_s: float | None = None
        self._look_due_s = now_s

    def look(self, now_s: float) -> Verdict:
        """To be called by `due_s`, after answers were told."""
        late_s = now_s - self._look_due_s
        if self._asked_s is None:
            verdict = Verdict.ASK if now_s >= self._ask_s else Verdict.WAIT
            if verdict is Verdict.ASK:
                self._asked_s = now_s
        else:
            if late_s > self._every_s:
                self._asked_s += late_s
            late = now_s - self._asked_s >= self._patience_s
            verdict = Verdict.HANGS if late else Verdict.WAIT
        self._look_due_s = self.due_s(now_s)
        return verdict

    def answered(self, now_s: float) -> None:
        """The peer lives."""
        if self._asked_s is not None:
            self._ask_s = min(now_s, self._asked_s) + self._every_s
        self._asked_s = None

    def due_s(self, now_s: float) -> float:
        """When to look again."""
        if self._asked_s is None:
            return max(now_s, self._ask_s)
        return max(now_s, min(now_s + self._every_s, self._asked_s + self._patience_s))
