"""Which target served a session last; leases and a bound, so nothing stays for ever."""

from __future__ import annotations

from collections import OrderedDict

from moonpool.router.base import Target


class Sessions:
    """At most `sessions_max`, the least recently used goes first."""

    def __init__(self, ttl_s: float, sessions_max: int) -> None:
        self._ttl_s = ttl_s
        self._sessions_max = sessions_max
        self._known: OrderedDict[str, tuple[Target, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def target(self, session: str, now: float) -> Target | None:
        found = self._known.get(session)
        return found[0] if found is not None and found[1] > now else None

    def served(self, session: str, target: Target, now: float) -> None:
        self._known[session] = (target, now + self._ttl_s)
        self._known.move_to_end(session)
        if len(self._known) > self._sessions_max:
            self._known.popitem(last=False)

    def forget_worker(self, worker: str) -> None:
        gone = [name for name, (target, _) in self._known.items() if target.worker == worker]
        for name in gone:
            del self._known[name]

    def expire(self, now: float) -> None:
        """Drop what ended, oldest use first."""
        while self._known:
            name = next(iter(self._known))
            if self._known[name][1] > now:
                return
            del self._known[name]
