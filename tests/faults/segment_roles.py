"""Processes around one segment file, to be stopped and killed.

Run as `python -m tests.faults.segment_roles ROLE ARGUMENTS`. Each role says on stdout what it has
done, line by line; the test kills it whenever it likes.
"""

import os
import random
import signal
import sys
from typing import NoReturn

from moonpool import _core
from tests.transfer.shared_segment import At, claim, put, records, retire, seal


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def stamped(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def serve(path: str, size: str) -> NoReturn:
    """An agent that claims once for whoever says `row epoch` on its stdin."""
    agent = _core.SegmentAgent.create(path, 16 << 20, 0, 256, populate=False)
    say("ready")
    row, epoch = map(int, sys.stdin.readline().split())
    status, slot, generation = agent.claim(
        records([int(size)], [b"key"], term=1, seq=77), b"key", agent.term, row, epoch
    )
    say(status[0], slot[0], generation[0])
    hang()


def fill(path: str, count: str) -> NoReturn:
    """An agent that seals `count` objects, saying slot, generation and seed of each."""
    agent = _core.SegmentAgent.create(path, 16 << 20, 0, 1024, populate=False)
    for seed in range(int(count)):
        at = put(agent, stamped(seed, 1000 + seed))
        say(at.slot, at.generation, seed)
    hang()


def write(path: str, size: str) -> NoReturn:
    """A client that, given `slot generation`, writes on until the slot is not its own."""
    client = _core.SegmentClient(path)
    say(client.row, client.row_epoch)
    at = At(*map(int, sys.stdin.readline().split()))
    source = b"\xee" * int(size)
    say("writing")
    status = 0
    while status == 0:
        status = int(client.write(at.slots, at.generations, [source])[0][0])
    say("status", status)
    hang()


def views(path: str, slot: str, generation: str, readers: str) -> NoReturn:
    """Forks readers that each hold views of one object; the whole group is to be killed."""
    for _ in range(int(readers)):
        if os.fork() == 0:
            client = _core.SegmentClient(path)
            held = [memoryview(_view(client, int(slot), int(generation))) for _ in range(3)]
            say("holds", len(held))
            hang()
    hang()


def orphan(path: str, slot: str, generation: str) -> NoReturn:
    """A reader with a view and a forked child, which is to outlive it."""
    client = _core.SegmentClient(path)
    view = _view(client, int(slot), int(generation))
    if os.fork() == 0:
        say("child lives")
        hang()
    say("holds", len(view))
    hang()


def _view(client: _core.SegmentClient, slot: int, generation: int) -> _core.SegmentView:
    view = client.pin(slot, generation)
    assert isinstance(view, _core.SegmentView), f"pin of {slot}: {view}"
    return view


def churn(path: str, seed: str) -> NoReturn:
    """Claims, seals, retires and drains at random; says `S` after a seal, `R` before a retire."""
    draw = random.Random(int(seed))
    agent = _core.SegmentAgent.adopt(path)
    found = agent.inventory(0, agent.slots)
    live = [At(int(s), int(g)) for s, g in zip(found["slot"], found["generation"], strict=True)]
    while True:
        if draw.random() < 0.4 and live:
            at = live.pop(draw.randrange(len(live)))
            say("R", at.slot, at.generation)
            retire(agent, at)
            continue
        if agent.usage()["free_bytes"] < 200_000 or agent.usage()["free_slots"] < 2:
            if agent.drain() == 0 and live:
                at = live.pop()
                say("R", at.slot, at.generation)
                retire(agent, at)
            continue
        value, size = draw.randrange(1 << 30), draw.randrange(20_000)
        at = claim(agent, size, b"k" * draw.randrange(1, 400))
        agent.write(at.slot, at.generation, 0, stamped(value, size))
        if draw.random() < 0.1:
            agent.abort(at.slots, at.generations)
        elif seal(agent, at) == 0:
            say("S", at.slot, at.generation, value, size)
            live.append(at)


def hang() -> NoReturn:
    while True:
        signal.pause()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
