"""Simulated time, network and processes: everything random comes from one seed.

Processes are real machines of the product (MasterMachine, NodeMachine, client protocols over real
segments); what is simulated is when messages arrive, and who is killed, stopped or cut off.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count


class World:
    """An event queue. `now` is monotonic seconds, equal on all simulated hosts."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = 100.0
        self.trace: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def after(self, delay: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), act))

    def boottime_ns(self) -> int:
        return int(self.now * 1e9)

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self.now * 1000)

    def note(self, text: str) -> None:
        """Kept for the report of a failing seed."""
        self.trace.append(f"{self.now - 100.0:9.4f} {text}")
        if len(self.trace) > 4000:
            del self.trace[:1000]

    def run(self, until: float) -> None:
        """Let everything happen up to the moment `until`."""
        while self._events and self._events[0][0] <= until:
            moment, _, act = heapq.heappop(self._events)
            self.now = max(self.now, moment)
            act()
        self.now = max(self.now, until)

    def delay(self) -> float:
        """One way over the network: mostly quick, now and then slow."""
        if self.random.random() < 0.05:
            return self.random.uniform(0.005, 0.08)
        return self.random.uniform(0.0001, 0.002)


class Process:
    """Something that can be killed, stopped and cut off. What reaches it while stopped waits."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.stopped = False
        self.life = 0
        self._waiting: list[Callable[[], None]] = []

    def deliver(self, act: Callable[[], None]) -> None:
        """Run `act` in this process: now, after a stop, or never if it died meanwhile."""
        if not self.alive:
            return
        if self.stopped:
            self._waiting.append(act)
        else:
            act()

    def later(self, delay: float, act: Callable[[], None]) -> None:
        """A timer of this life of the process."""
        life = self.life

        def fire() -> None:
            if self.life == life:
                self.deliver(act)

        self.world.after(delay, fire)

    def stop(self) -> None:
        if self.alive and not self.stopped:
            self.world.note(f"{self.name} stopped")
            self.stopped = True

    def resume(self) -> None:
        if self.stopped:
            self.world.note(f"{self.name} resumed")
            self.stopped = False
            waiting, self._waiting = self._waiting, []
            for act in waiting:
                self.deliver(act)

    def kill(self) -> None:
        if self.alive:
            self.world.note(f"{self.name} killed")
            self.alive = self.stopped = False
            self.life += 1
            self._waiting.clear()
            self.died()

    def died(self) -> None:
        """Hook: what dies with the process."""


class Connection:
    """An ordered stream between two processes. It breaks when an end dies or the link is cut."""

    def __init__(
        self,
        world: World,
        ends: tuple[Process, Process],
        receive: tuple[Callable[[object], None], Callable[[object], None]],
        broken: tuple[Callable[[], None], Callable[[], None]],
    ) -> None:
        self.world = world
        self.ends = ends
        self.open = True
        self._receive = receive
        self._broken = broken
        self._lives = (ends[0].life, ends[1].life)
        self._last = [world.now, world.now]
        self._held_until = 0.0

    def send(self, side: int, message: object) -> None:
        """From end `side` to the other one; in order, after a network delay."""
        if not self.open:
            return
        other = 1 - side
        moment = max(self.world.now + self.world.delay(), self._last[side], self._held_until)
        self._last[side] = moment

        def arrive() -> None:
            if self.open and self.ends[other].life == self._lives[other]:
                self.ends[other].deliver(lambda: self._take(other, message))

        self.world.after(moment - self.world.now, arrive)

    def _take(self, side: int, message: object) -> None:
        if self.open:
            self._receive[side](message)

    def hold(self, seconds: float) -> None:
        """The network is cut for a while: what is sent arrives afterwards."""
        self._held_until = max(self._held_until, self.world.now + seconds)

    def break_off(self) -> None:
        """Both ends learn, each after a delay of its own."""
        if not self.open:
            return
        self.open = False
        for side in (0, 1):
            end, broken, life = self.ends[side], self._broken[side], self._lives[side]

            def tell(
                end: Process = end, broken: Callable[[], None] = broken, life: int = life
            ) -> None:
                if end.life == life:
                    end.deliver(broken)

            self.world.after(self.world.delay(), tell)
