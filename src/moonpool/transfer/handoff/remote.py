"""What a decode rank keeps of prefill workers: their ranks, its sessions with them, and what waits
until they are reached."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from moonpool.transfer.handoff import messages as m
from moonpool.transfer.handoff.actions import DecodeAction
from moonpool.transfer.handoff.layout import KVLayout
from moonpool.transfer.handoff.link import SideLink
from moonpool.transfer.handoff.mapping import I64
from moonpool.transfer.handoff.memory import Grant

Step = Callable[[tuple[int, ...]], list[DecodeAction]]


class Session:
    """A connection to one prefill rank, and the leave it has to write here."""

    def __init__(self, number: int, remote: "Remote", rank: int, grant: Grant) -> None:
        self.number, self.remote, self.rank, self.grant = number, remote, rank, grant
        self.link: SideLink | None = None
        self.up = False
        self.layout: KVLayout | None = None
        self.hello: asyncio.Future[m.Hello] = asyncio.get_running_loop().create_future()


class Waiting(NamedTuple):
    """What to do once a worker is reached; `transfer` is settled as failed when it is not."""

    transfer: str | None
    engine: str | None
    step: Step


class Remote:
    """A prefill worker: its ranks listen on consecutive ports. `ranks` maps those we need to their
    sessions once all of them are up."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.layout: KVLayout | None = None
        self.engine = ""
        self.ranks: dict[int, Session] = {}
        self.ready = False
        self.task: asyncio.Task[None] | None = None
        self.waiting: list[Waiting] = []


class Asked(NamedTuple):
    """What was announced: decode's blocks, for verifying."""

    first_token: int
    tokens: int
    blocks: I64
