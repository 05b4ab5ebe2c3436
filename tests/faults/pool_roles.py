"""Client processes of a pool, to be stopped and killed.

Run as `python -m tests.faults.pool_roles ROLE ADDRESS ARGUMENTS`. Each says on stdout what it has
done, line by line; the test kills it whenever it likes.
"""

import os
import random
import signal
import sys
from typing import NoReturn

import moonpool
from moonpool.core.errors import MoonpoolError
from moonpool.pool.inputs import as_items
from moonpool.pool.pool import Pool
from moonpool.pool.process import end_with
from moonpool.pool.protocol import MasterLost
from moonpool.pool.protocol_put import write
from moonpool.pool.protocol_reserve import PutOptions, reserve
from moonpool.pool.results import Hit, RemoveStatus
from tests.faults.pool_rig import stamp

LIVE_MAX = 60
VALUE_MAX = 24_000


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def load(address: str, name: str, number: str) -> NoReturn:
    """Puts, gets and removes keys of its own, each key once. Says
    `P key size` put acknowledged, `R key` removal asked for, `r key` acknowledged,
    `W key` wrong bytes read, `M key reason` miss of an acknowledged key, `E error`."""
    draw = random.Random(int(number))
    pool = moonpool.connect(address, timeout_s=4)
    live: dict[str, int] = {}
    say("ready")
    at = 0
    while True:
        dice = draw.random()
        try:
            if not live or (dice < 0.5 and len(live) < LIVE_MAX):
                key, size = f"{name}/{at}", draw.randrange(VALUE_MAX)
                at += 1
                if pool.put(key, stamp(key, size)).ok:
                    say("P", key, size)
                    live[key] = size
            elif dice < 0.85:
                _check(pool, *draw.choice(list(live.items())))
            else:
                key = draw.choice(list(live))
                del live[key]
                say("R", key)
                if pool.remove(key) in (RemoveStatus.REMOVED, RemoveStatus.PENDING):
                    say("r", key)
        except MoonpoolError as error:
            say("E", type(error).__name__)


def _check(pool: Pool, key: str, size: int) -> None:
    result = pool.get_many([key])[0]
    if not isinstance(result, Hit):
        say("M", key, result.reason)
    elif result.data != stamp(key, size):
        say("W", key)


def reserved(address: str, key: str, size: str) -> NoReturn:
    """Reserves and does no more."""
    _begin(address, key, int(size), written=False)


def sealed(address: str, key: str, size: str) -> NoReturn:
    """Reserves, writes and seals, and does not commit."""
    _begin(address, key, int(size), written=True)


def _begin(address: str, key: str, size: int, *, written: bool) -> NoReturn:
    pool = moonpool.connect(address)
    items = as_items([key.encode()], [stamp(key, size)], None, None)
    options = PutOptions()
    shell = pool._shell  # the steps of a put one by one are no part of the face
    granted = shell.run(lambda context: reserve(context, items, [0], options), 5)
    assert not isinstance(granted, MasterLost) and len(granted.attempts) == 1
    if written:
        shell.run(lambda context: write(context, items, granted.attempts, options), 5)
        assert granted.attempts[0].sealed
    say("holds")
    hang()


def session(address: str, key: str, size: str) -> NoReturn:
    """Claims and writes the first half; told `commit`, writes the rest and commits."""
    pool, value = moonpool.connect(address), stamp(key, int(size))
    half = len(value) // 2
    with pool.write_session([key], [len(value)]) as writer:
        writer.write_at(0, 0, value[:half])
        say("holds")
        if sys.stdin.readline():
            writer.write_at(0, half, value[half:])
            say(writer.commit()[0].status)
    hang()


def scribble(address: str, key: str, size: str) -> NoReturn:
    """Writes its claimed object over and over; says when a write came to nothing."""
    pool, junk = moonpool.connect(address), b"\xee" * int(size)
    writer = pool.write_session([key], [len(junk)])
    while not any(writer._state._claims.values()):  # a busy machine may take its reservation away
        writer.abort()
        writer = pool.write_session([key], [len(junk)])
    say("holds")
    while any(writer._state._claims.values()):  # what a failed write takes its claim from
        writer.write_at(0, 0, junk)
    say("over")
    hang()


def views(address: str, key: str, count: str) -> NoReturn:
    """Holds `count` views of one object."""
    pool = moonpool.connect(address)
    held = [pool.view(key) for _ in range(int(count))]
    assert all(view.zero_copy for view in held)
    say("holds", len(held))
    hang()


def read(address: str, key: str, size: str) -> NoReturn:
    """Reads one object on and on, each time whole; says `ok`, `miss reason` or `wrong`."""
    pool = moonpool.connect(address, timeout_s=4)
    while True:
        _say_read(pool, key, int(size))


def ask(address: str, key: str, size: str) -> NoReturn:
    """The same once for each line it is told."""
    pool = moonpool.connect(address, timeout_s=4)
    while sys.stdin.readline():
        _say_read(pool, key, int(size))
    hang()


def _say_read(pool: Pool, key: str, size: int) -> None:
    result = pool.get_many([key])[0]
    if not isinstance(result, Hit):
        say("miss", result.reason)
    else:
        say("ok" if result.data == stamp(key, size) else "wrong")


def putting(address: str, key: str, size: str) -> NoReturn:
    """Replaces one object on and on, each time with the same bytes."""
    pool = moonpool.connect(address, timeout_s=4)
    value = stamp(key, int(size))
    say("ready")
    while True:
        try:
            say(pool.put(key, value, replace=True).status)
        except MoonpoolError as error:
            say(type(error).__name__)


def hang() -> NoReturn:
    while True:
        signal.pause()


def move(address: str, node: str, *keys: str) -> NoReturn:
    """Begins a task, says its id, and stays to be killed."""
    say(moonpool.connect(address).move(list(keys), node).id)
    signal.pause()
    sys.exit(0)


if __name__ == "__main__":
    end_with(os.getppid())
    globals()[sys.argv[1]](*sys.argv[2:])
