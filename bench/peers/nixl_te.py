"""NIXL alone reading another process's memory on one host: over what UCX takes by itself there (one
process reads the other's memory, "cma"), and over UCX's own TCP.

As `python -m bench.peers.nixl_te target NAME` it is the process that is read from. Everything is at
its default, the target's thread that spins included; a call makes a request for its blocks, posts
it and looks until it is done, as NIXL's users do. Blocks of a batch lie in reverse: none adjoins
the next.
"""

import base64
import contextlib
import importlib
import itertools
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.children import Child
from bench.peers.memory import Memory, block, blocks_text
from bench.peers.rounds import Case, Rival, Title, main

REGION_BYTES: Final = 256 << 20  # larger than a cache; reads walk through it
READER_BYTES: Final = 16 << 20
TARGET: Final = "target"
READY: Final = "ready"
DRAM: Final = "DRAM"
WHEEL: Final = "nixl_cu12"
BACK_ENDS: Final[dict[str, dict[str, str]]] = {"cma": {}, "ucx-tcp": {"UCX_TLS": "tcp"}}
SHAPES: Final = ((1, 4 << 10), (32, 4 << 10), (1, 64 << 10), (1, 1 << 20), (1, 16 << 20))

Rows = NDArray[np.uint64]


@contextlib.contextmanager
def started() -> Iterator[Rival]:
    """Cases of each back end in turn. What one needs is started with its first call, and ended by
    the next one's: NIXL's threads spin, and would be in the others' way."""
    pids = list[int]()
    with contextlib.ExitStack() as stack:
        readers = [Reader(name, setting, pids, stack) for name, setting in BACK_ENDS.items()]
        yield Rival([reader.case(*shape) for reader in readers for shape in SHAPES], pids)


def agent_with(name: str, memory: Memory) -> Any:
    """A NIXL agent that knows `memory`."""
    api = importlib.import_module(f"{WHEEL}._api")
    logging.getLogger("nixl").setLevel(logging.WARNING)  # it would log to stdout
    agent = api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))
    agent.register_memory(_rows([memory.address], memory.nbytes), DRAM)
    return agent


class Reader:
    """Reads blocks of a target's memory into ours over one back end."""

    def __init__(
        self, name: str, setting: dict[str, str], pids: list[int], stack: contextlib.ExitStack
    ) -> None:
        self._name = name
        self._setting = setting
        self._pids = pids  # of the target that is up, if any
        self._stack = stack
        self._target: Child | None = None
        self._memory = Memory(READER_BYTES)
        self._agent: Any = None
        self._peer = ""
        self._address = 0

    def case(self, count: int, size: int) -> Case:
        """Reads of `count` blocks of `size` bytes a call."""
        memory, turn = self._memory, itertools.cycle(range(REGION_BYTES // (count * size)))
        near = _rows([memory.address + i * size for i in range(count)], size)
        last: list[Sequence[int]] = [()]

        def call() -> None:
            if self._target is None or self._target.pid not in self._pids:
                self._start()
            place = next(turn)
            last[0] = [place * count + count - 1 - i for i in range(count)]
            self._read(near, _rows([self._address + n * size for n in last[0]], size))

        def arrived() -> bool:
            return memory.took(last[0], size)

        return Case(
            f"{self._name} read {blocks_text(count, size)}", call, arrived, count * size, count
        )

    def _start(self) -> None:
        self._stack.close()  # ends the other back end
        with contextlib.ExitStack() as stack:
            stack.callback(_restore, dict(os.environ))
            os.environ.update(self._setting)
            command = [sys.executable, "-m", "bench.peers.nixl_te", TARGET, self._name]
            self._target = Child(command, name=f"{TARGET} {self._name}")
            self._stack.enter_context(self._target)
            address, metadata = self._target.wait_for(READY, 60).split()
            self._agent = agent_with(f"reader-{self._name}", self._memory)
        self._stack.callback(self._end)
        self._address = int(address)
        self._peer = self._agent.add_remote_agent(base64.b64decode(metadata)).decode()
        self._pids.append(self._target.pid)

    def _end(self) -> None:
        self._pids.clear()
        self._agent.agent = None

    def _read(self, near: Rows, far: Rows) -> None:
        agent = self._agent
        here, there = agent.get_xfer_descs(near, DRAM), agent.get_xfer_descs(far, DRAM)
        handle = agent.initialize_xfer("READ", here, there, self._peer)
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        agent.release_xfer_handle(handle)
        if state != "DONE":
            raise RuntimeError(f"read ended as {state}")


def _restore(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _rows(addresses: Sequence[int], size: int) -> Rows:
    rows = np.zeros((len(addresses), 3), np.uint64)
    rows[:, 0] = addresses
    rows[:, 1] = size
    return rows


def target(name: str) -> None:
    """Be read from until stdin closes."""
    memory = Memory(REGION_BYTES)
    for number in range(REGION_BYTES >> 20):
        memory.write(number << 20, block(number, 1 << 20))
    agent = agent_with(f"{TARGET}-{name}", memory)
    metadata = base64.b64encode(agent.get_agent_metadata()).decode()
    print(f"{READY} {memory.address} {metadata}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    os.environ.setdefault("UCX_LOG_FILE", "stderr")
    if not os.path.isdir("/sys/class/infiniband"):
        # UCX's modules for cards crash the process as it ends where there is no card.
        os.environ.setdefault("UCX_MODULES", "^ib")
    if sys.argv[1:2] == [TARGET]:
        target(sys.argv[2])
    else:
        main(Title("transfer", "nixl", version("nixl-cu12")), started)
