"""Random ops against a peer that is cut off, held up, stopped and killed: a model says what each
byte may be, on both sides, at any time. All is drawn from a seed; real time decides what overlaps.

Memory is dealt out in slots, one op per slot at a time, so the model needs no order between ops:

    side    after DONE           after any other end             afterwards
    ours    the peer's bytes     ours, the peer's or zeros       never changes again
    peer's  ours                 theirs or ours                  the same: nothing arrives late
"""

import random
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moonpool.core.errors import (
    Cancelled,
    DeadlineExceeded,
    MoonpoolError,
    PeerRestarted,
    TooManyOps,
    Unreachable,
)
from moonpool.transfer.base import U8, BlockStatus, OpState
from moonpool.transfer.engine import Engine
from moonpool.transfer.op import Op
from moonpool.transfer.peer import Peer
from moonpool.transfer.segment import RemoteSegment
from tests.transfer.conftest import stamped
from tests.transfer.owner import BIG_BYTES, BIG_SEED, Owner
from tests.transfer.proxy import Proxy

SLOTS = 32
SLOT_BYTES = BIG_BYTES // SLOTS
BIG = stamped(BIG_BYTES, BIG_SEED)

_EXPECTED = (Cancelled, DeadlineExceeded, PeerRestarted, TooManyOps, Unreachable)


@dataclass
class Slot:
    """`near` is what our memory holds, `far` what each byte of the peer's may be, `gone` the same
    of a peer that died under the op."""

    near: U8
    far: list[U8]
    gone: list[U8] = field(default_factory=list)
    op: Op | None = None
    kind: str = ""
    blocks: list[tuple[int, int]] = field(default_factory=list)
    epoch: int = 0


class Soak:
    """One run; `log` is what happened, to be shown when something is wrong."""

    def __init__(self, seed: int, folder: str) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.counts: dict[str, int] = {}
        self.log: list[str] = []
        self.owner = Owner(folder, hosts=["127.0.0.2"])
        self.proxies = [Proxy(address) for address in self.owner.addresses]
        self.engine = Engine(
            dir=folder,
            shared_memory=False,
            slice_bytes=64 << 10,
            stripe_bytes=128 << 10,
            heartbeat_ms=100,
            hang_ms=500,
        )
        self.memory = self.engine.register(np.zeros(BIG_BYTES, dtype=np.uint8))
        self.peer = self._connect()
        self.slots = [
            Slot(self.memory.array[part].copy(), [BIG[part].copy()])
            for part in (_part(at) for at in range(SLOTS))
        ]

    def run(self, seconds: float) -> None:
        """Random things until the time is over, then calm, then all of it is looked at."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            at = self.random.randrange(SLOTS)
            slot = self.slots[at]
            if slot.op is None:
                self._begin(at)
            elif slot.op.done():
                self._finish(at)
            elif self.random.random() < 0.02:
                self._note("cancel")
                slot.op.cancel()
            else:
                time.sleep(0.0005)
            if self.random.random() < 0.03:
                self._disturb()
        self._calm()

    def close(self) -> None:
        self.engine.close()
        for proxy in self.proxies:
            proxy.close()
        self.owner.__exit__(None, None, None)

    def _connect(self) -> Peer:
        return self.engine.connect(
            self.proxies[0].address, timeout=30.0, rails=[self.proxies[1].address]
        )

    def _begin(self, at: int) -> None:
        slot, draw = self.slots[at], self.random
        blocks, offset = list[tuple[int, int]](), at * SLOT_BYTES
        size = draw.choice((512, 4096, 65_536, SLOT_BYTES))
        for start in range(0, SLOT_BYTES, size):
            if size == SLOT_BYTES or draw.random() < 0.5:
                blocks.append((start, size))
        slot.kind, slot.blocks = draw.choice(("read", "write")), blocks
        part = self.memory.array[_part(at)]
        part[:] = np.frombuffer(draw.randbytes(SLOT_BYTES), dtype=np.uint8)
        slot.near = part.copy()
        where = (
            np.array([offset + start for start, _ in blocks], dtype=np.uint64),
            np.array([length for _, length in blocks], dtype=np.uint64),
        )
        how: dict[str, Any] = {
            "deadline": draw.choice((0.002, 0.02, 0.5, 5.0, 5.0, 5.0)),
            "priority": draw.choice((0, 0, 0, 1, -1)),
            "checksum": draw.random() < 0.8,
            "notify": draw.choice((None, None, b"slot %d" % at)),
        }
        try:
            far = self._far()
        except MoonpoolError:
            # It cannot be asked just now.
            self._note("no descriptor")
            return
        slot.epoch, slot.gone = far.epoch, []
        move = self.engine.read if slot.kind == "read" else self.engine.write
        slot.op = move(self.memory, where, far, where, **how)

    def _far(self) -> RemoteSegment:
        # Without a question to the peer, as long as it is known.
        known = self.peer.segments.get("big")
        return known if known is not None else self.peer.segment("big")

    def _finish(self, at: int) -> None:
        slot = self.slots[at]
        op, slot.op = slot.op, None
        assert op is not None
        result = op.result
        self._note(f"{slot.kind} {result.state}", "" if result.ok else repr(result.error))
        if result.state is not OpState.DONE:
            assert isinstance(result.error, _EXPECTED), repr(result.error)
        if isinstance(result.error, PeerRestarted):
            # The descriptor is of no use; what the peer holds now is known from its start.
            self._refresh()
        ours = self.memory.array[_part(at)]
        if slot.kind == "write":
            self._wrote(slot, result.status)
            assert np.array_equal(ours, slot.near), "a write changed the caller's memory"
            return
        for (start, length), status in zip(slot.blocks, result.status.tolist(), strict=True):
            block = slice(start, start + length)
            candidates = [far[block] for far in (*slot.far, *slot.gone)]
            if status != BlockStatus.OK:
                # Zeros: what an owner sends for the rest of a block whose deadline has passed.
                candidates += [slot.near[block], np.zeros(length, dtype=np.uint8)]
            self._check(ours[block], candidates, f"read into slot {at}, block at {start}")
        outside = np.ones(SLOT_BYTES, dtype=bool)
        for start, length in slot.blocks:
            outside[start : start + length] = False
        assert np.array_equal(ours[outside], slot.near[outside]), "bytes between blocks changed"
        slot.near = ours.copy()

    def _wrote(self, slot: Slot, status: U8) -> None:
        if slot.epoch != self.owner.epoch:
            return
        done = slot.far[0].copy()
        all_ok = True
        for (start, length), one in zip(slot.blocks, status.tolist(), strict=True):
            block = slice(start, start + length)
            if one == BlockStatus.OK:
                for far in slot.far:
                    far[block] = slot.near[block]
            else:
                all_ok = False
            done[block] = slot.near[block]
        if not all_ok:
            slot.far.append(done)

    def _check(self, got: U8, candidates: list[U8], what: str) -> None:
        fits = np.zeros(len(got), dtype=bool)
        for one in candidates:
            fits |= got == one
        assert fits.all(), f"{what}: {int((~fits).sum())} of {len(got)} bytes are nobody's"

    def _disturb(self) -> None:
        draw = self.random
        what = draw.choices(
            ("cut", "hold", "calm", "slow", "stop", "kill", "quiet"), (4, 4, 12, 3, 2, 1, 6)
        )[0]
        self._note(what)
        proxy = draw.choice(self.proxies)
        if what == "cut":
            proxy.cut()
        elif what == "hold":
            proxy.hold()
        elif what == "slow":
            proxy.bytes_per_s = draw.choice((5e6, 50e6))
        elif what == "stop":
            self.owner.stop()
        elif what == "kill":
            self._restart()
        elif what == "quiet":
            self._look_at_idle_slots()
        else:
            self._mend()

    def _mend(self) -> None:
        self.owner.resume()
        for proxy in self.proxies:
            proxy.bytes_per_s = 0.0
            proxy.mend()
            proxy.release()

    def _look_at_idle_slots(self) -> None:
        for at, slot in enumerate(self.slots):
            if slot.op is None:
                ours = self.memory.array[_part(at)]
                assert np.array_equal(ours, slot.near), f"slot {at} changed after its op's end"

    def _restart(self) -> None:
        self.owner.resume()
        self.owner.kill()
        self.owner.__exit__(None, None, None)
        self.owner = Owner(self.folder, hosts=["127.0.0.2"])
        for proxy, address in zip(self.proxies, self.owner.addresses, strict=True):
            proxy.lead_to(address)
        for at, slot in enumerate(self.slots):
            if slot.op is not None:
                slot.gone += slot.far
            slot.far = [BIG[_part(at)].copy()]

    def _refresh(self) -> None:
        try:
            self.peer.refresh(1.0)
        except MoonpoolError:
            self._note("cannot refresh")

    def _calm(self) -> None:
        self._mend()
        for at, slot in enumerate(self.slots):
            if slot.op is not None:
                assert slot.op.wait(), f"slot {at}: {slot.op!r} does not end"
                self._finish(at)
        self._look_at_idle_slots()
        until_s = time.monotonic() + 60.0
        there: Any = None
        while there is None:
            assert time.monotonic() < until_s, "the peer is not reached again"
            self._mend()
            self._refresh()
            memory = self.engine.allocate(BIG_BYTES)
            op = self.engine.read(memory, None, self._far(), None, deadline=30.0)
            op.wait()
            there = memory.array if op.result.ok else None
            if there is None:
                self._note("not there", f"{op.result.error!r} of {self.peer!r}")
        for at, slot in enumerate(self.slots):
            self._check(there[_part(at)], slot.far, f"what the peer holds in slot {at}")
        self._look_at_idle_slots()
        self._count_leaks()

    def _count_leaks(self) -> None:
        views = self.engine.runner.striper.views()
        assert self.engine.runner.striper.scheduler.open_ops == 0
        assert {view.peer for view in views} == {self.peer.rails.key}, "rails of dead peers"

    def _note(self, what: str, why: str = "") -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        self.log.append(f"{time.monotonic():.4f} {what} {why}".rstrip())


def _part(at: int) -> slice:
    return slice(at * SLOT_BYTES, (at + 1) * SLOT_BYTES)
