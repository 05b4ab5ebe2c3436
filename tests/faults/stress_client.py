"""A client of a pool under stress: random calls on few hot keys, every byte read is checked.

Run as `python -m tests.faults.stress_client ADDRESS NAME SEED`. Values name their key, their writer
and a number that grows; so a reader can check them whole. It ends when told a line on stdin. Says
`ready`, `V what ...` for what may never happen, and at the end `over calls errors`.
"""

import os
import random
import re
import select
import sys
import traceback
from collections import Counter
from collections.abc import Callable

import moonpool
from moonpool.core.errors import MoonpoolError
from moonpool.pool.results import Hit, PutStatus
from moonpool.pool.view import View

HOT, CHAINS, CHAIN_LENGTH, OWN = 16, 4, 6, 4
SIZES = (0, 1, 63, 64, 1000, 4096, 20_000, 70_000)
VIEWS_MAX = 6
LAYERS = 4
Data = bytes | bytearray | memoryview
HEAD = re.compile(rb"<([^|>]+)\|([^|>]+)\|(\d+)\|(\d+)>")


def value(key: str, writer: str, number: int, size: int) -> bytes:
    """`size` bytes, but at least the head that names them."""
    head = f"<{key}|{writer}|{number}|{size}>".encode()
    return head + random.Random(head).randbytes(max(0, size - len(head)))


def number_of(key: str, data: Data) -> int | None:
    """The number of a value of `key`; None when it is none, whole."""
    found = HEAD.match(bytes(data[:200]))
    if found is None or found[1].decode() != key:
        return None
    writer, number, size = found[2].decode(), int(found[3]), int(found[4])
    return number if value(key, writer, number, size) == data else None


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Client:
    def __init__(self, address: str, name: str, seed: int) -> None:
        self.name = name
        self.draw = random.Random(seed)
        self.pool = moonpool.connect(address, timeout_s=3)
        self.number = 0
        self.acknowledged: dict[str, int] = {}  # own keys: nobody else writes these
        self.views: list[tuple[str, View]] = []
        self.calls: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()

    def run(self) -> None:
        calls: list[Callable[[], None]] = [
            self.put,
            self.replace,
            self.get,
            self.get_into,
            self.view,
            self.close_view,
            self.remove,
            self.chain,
            self.read_chain,
            self.remove_chain,
            self.write_session,
            self.read_session,
            self.own,
            self.own,
            self.batch,
        ]
        while not select.select([0], [], [], 0)[0]:
            call = self.draw.choice(calls)
            self.calls[call.__name__] += 1
            try:
                call()
            except MoonpoolError as error:
                self.errors[f"{call.__name__}:{type(error).__name__}"] += 1
            except Exception:
                say("V", call.__name__, traceback.format_exc().replace("\n", " | "))
        while self.views:
            self.close_view()
        self.pool.close()
        say("over", sum(self.calls.values()), dict(self.errors))

    # What is checked.

    def check(self, key: str, data: Data | None, how: str) -> int | None:
        if data is None:
            return None
        number = number_of(key, data)
        if number is None:
            say("V", how, key, f"{len(data)} bytes", bytes(data[:80]))
        return number

    # What is done.

    def fresh(self, key: str) -> bytes:
        self.number += 1
        return value(key, self.name, self.number, self.draw.choice(SIZES))

    def hot(self) -> str:
        return f"hot/{self.draw.randrange(HOT)}"

    def put(self) -> None:
        key = self.hot()
        self.pool.put(
            key,
            self.fresh(key),
            replicas=self.draw.choice((1, 1, 2)),
            min_replicas=1,
            ttl_s=self.draw.choice((None, None, 0.05)),
            pin=self.draw.choice((None, None, "soft")),
        )

    def replace(self) -> None:
        key = self.hot()
        self.pool.put(key, self.fresh(key), replace=True)

    def get(self) -> None:
        key = self.hot()
        self.check(key, self.pool.get(key), "get")

    def get_into(self) -> None:
        key, buffer = self.hot(), bytearray(100_000)
        size = self.pool.get_into(key, buffer)
        if size is not None:
            self.check(key, memoryview(buffer)[:size], "get_into")

    def view(self) -> None:
        key = self.hot()
        if len(self.views) < VIEWS_MAX:
            view = self.pool.view(key)
            self.check(key, view.data, "view")
            if view.data is not None:
                self.views.append((key, view))

    def close_view(self) -> None:
        if self.views:
            key, view = self.views.pop(self.draw.randrange(len(self.views)))
            self.check(key, view.data, "held view")
            view.close()

    def remove(self) -> None:
        self.pool.remove(self.hot())

    def links(self) -> list[str]:
        chain = self.draw.randrange(CHAINS)
        return [f"chain/{chain}/{i}" for i in range(CHAIN_LENGTH)]

    def chain(self) -> None:
        keys = self.links()
        results = self.pool.put_many(keys, [self.fresh(key) for key in keys], parents="chain")
        ok = [result.ok for result in results]
        settled = all(result.status is not PutStatus.IN_FLIGHT for result in results)
        if settled and ok != sorted(ok, reverse=True):
            say("V", "hole in a chain's put", [str(result.status) for result in results])

    def read_chain(self) -> None:
        keys = self.links()
        self.pool.match_prefix(keys)
        for key, answer in zip(keys, self.pool.get_many(keys), strict=True):
            if isinstance(answer, Hit):
                self.check(key, answer.data, "chain")

    def remove_chain(self) -> None:
        self.pool.remove_prefix(f"chain/{self.draw.randrange(CHAINS)}/")

    def batch(self) -> None:
        keys = [self.hot() for _ in range(8)]  # some of them twice
        replace = self.draw.random() < 0.3
        self.pool.put_many(keys, [self.fresh(key) for key in keys], replace=replace)

    def write_session(self) -> None:
        keys = [self.hot(), self.links()[0]]
        values = []
        for key in keys:
            self.number += 1
            values.append(value(key, self.name, self.number, LAYERS * 5000))
        with self.pool.write_session(keys, [len(v) for v in values], layers=LAYERS) as writer:
            for layer in self.draw.sample(range(LAYERS), LAYERS):
                pieces = [v[layer * 5000 : (layer + 1) * 5000] for v in values]
                writer.write(layer, pieces)
            if self.draw.random() < 0.3:
                writer.abort()

    def read_session(self) -> None:
        key = self.hot()
        with self.pool.read_session([key]) as reader:
            buffer = bytearray(reader.sizes[0])
            middle = len(buffer) // 2
            view = memoryview(buffer)
            if reader.read_at(0, middle, view[middle:]) and reader.read_at(0, 0, view[:middle]):
                self.check(key, buffer, "read_session")

    def own(self) -> None:
        """One writer: after a replace was acknowledged nobody gets an older value (P5)."""
        key = f"own/{self.name}/{self.draw.randrange(OWN)}"
        if self.draw.random() < 0.4:
            data = self.fresh(key)
            number = self.number
            if self.pool.put(key, data, replace=True).status is PutStatus.STORED:
                self.acknowledged[key] = number
            return
        known = self.acknowledged.get(key, 0)
        number_read = self.check(key, self.pool.get(key), "own")
        if number_read is not None and number_read < known:
            say("V", "an older value is back", key, number_read, known)


if __name__ == "__main__":
    client = Client(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    say("ready")
    client.run()
