"""A whole replay: the pool's processes come up, one client replays, everything goes away again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import moonpool
from moonpool.cli.progress import progress
from moonpool.cli.replay.driver import Replayer
from moonpool.cli.replay.inject import Faults, Injector
from moonpool.cli.replay.room import Room, free_memory
from moonpool.cli.signals import sigterm_interrupts
from moonpool.core.sections import MasterConfig, NodeConfig, PolicyName
from moonpool.planner.replay import Ledger, Window
from moonpool.planner.stamps import Stamper
from moonpool.planner.traces import Trace
from moonpool.pool.cluster import Cluster, cpu_seconds, local_directory


@dataclass(frozen=True)
class Plan:
    """What to replay, and into what. `capacity_blocks` of each node; None: room for everything."""

    trace: Trace
    nodes: int = 1
    capacity_blocks: int | None = None
    block_bytes: int = 16 << 10
    policy: PolicyName = "lru"
    faults: Faults = Faults()
    seed: int = 0


@dataclass(frozen=True)
class Report:
    """`record` is the one object of --json; `windows` are for the picture."""

    record: dict[str, Any]
    windows: list[Window]


def run(plan: Plan) -> Report:
    """Replay in a pool of processes of its own, which is gone when this returns or raises.

    Raises SegmentSpace, with the sum, before anything is started that does not fit.
    """
    room = Room.of(plan.trace, plan.nodes, plan.block_bytes, plan.capacity_blocks)
    with sigterm_interrupts(), local_directory("replay") as directory:
        room.check(free_memory(directory))
        stamper = Stamper(plan.block_bytes, plan.seed)
        configs = [
            NodeConfig(
                name=f"node{number}",
                memory=room.capacity_bytes,
                headroom=room.headroom_bytes,
                slots=room.slots,
                dir=str(directory),
                persist=False,
            )
            for number in range(plan.nodes)
        ]
        master = MasterConfig(port=0, nodes_expected=plan.nodes, policy=plan.policy)
        cluster = Cluster(master, configs)
        with cluster, moonpool.connect(cluster.address, token="") as pool:
            return _replay(plan, room, stamper, cluster, pool)


def _replay(
    plan: Plan, room: Room, stamper: Stamper, cluster: Cluster, pool: moonpool.Pool
) -> Report:
    ledger = Ledger(plan.trace.block_tokens)
    replayer = Replayer(pool, plan.trace, stamper, ledger)
    injector = Injector(plan.faults, plan.trace, pool, _killer(cluster), plan.seed)
    cpu = _CpuClock(cluster)
    start = time.perf_counter()
    with progress(f"replaying {plan.trace.name}", len(plan.trace.requests)) as step:
        replayer.run(before=injector, done=lambda _: step(1))
    seconds = time.perf_counter() - start
    dead = len(cluster.died()) - injector.killed
    if dead > 0:
        ledger.error("process_died", dead)
    figures = ledger.figures()
    moved_gb = (figures.bytes_read + figures.bytes_written) / 1e9
    cpu_s = cpu.seconds()
    record = asdict(figures) | {
        "trace": plan.trace.name,
        "nodes": plan.nodes,
        "capacity_blocks": room.capacity_blocks,
        "block_bytes": plan.block_bytes,
        "block_tokens": plan.trace.block_tokens,
        "policy": plan.policy,
        "seed": plan.seed,
        "full_blocks": replayer.full_blocks,
        "corrupted_bytes": injector.corrupted,
        "killed_nodes": injector.killed,
        "seconds": seconds,
        "cpu_s": cpu_s,
        "cpu_s_per_gb": cpu_s / moved_gb if moved_gb else 0.0,
    }
    return Report(record, ledger.windows())


def _killer(cluster: Cluster) -> Callable[[], None]:
    def kill() -> None:
        """The last node that lives, if one does."""
        for node in reversed(cluster.nodes):
            if node.alive:
                cluster.kill(node)
                return

    return kill


class _CpuClock:
    """CPU seconds of this process and the pool's; a killed node's are lost with it."""

    def __init__(self, cluster: Cluster) -> None:
        self._pids = [child.pid for child in cluster.children]
        self._own = time.process_time()
        self._theirs = {pid: cpu_seconds(pid) for pid in self._pids}

    def seconds(self) -> float:
        theirs = (max(0.0, cpu_seconds(pid) - self._theirs[pid]) for pid in self._pids)
        return time.process_time() - self._own + sum(theirs)
