"""Which transports can reach a segment, in which order they are tried, and why."""

from typing import Final, NamedTuple

from moonpool.transfer.cost import MEDIUM_COSTS, MediumCost
from moonpool.transfer.file_segment import FileSegment
from moonpool.transfer.layout import Layout
from moonpool.transfer.segment import RemoteSegment, Segment
from moonpool.transfer.topology import UNKNOWN_NODE
from moonpool.transfer.vram_segment import VramSegment

TRANSPORTS: Final = ("local", "shm", "nixl", "tcp", "file", "vram")

# Rough costs: microseconds a call and a block, seconds a GB.
_COSTS: Final = {
    "local": (1.0, 0.05, 0.12),
    "shm": (1.5, 0.05, 0.15),
    "nixl": (15.0, 1.0, 0.35),
    "tcp": (12.0, 1.3, 0.33),
    "file": (5.0, 1.0, 0.3),
    "vram": (20.0, 2.0, 0.1),
}


AnySegment = RemoteSegment | Segment | FileSegment | VramSegment


class Choice(NamedTuple):
    """One line of Engine.explain(): whether `transport` can reach the segment and `why` (not).
    `estimate_us` is what the asked transfer would take, roughly. A peer with several ways to it has
    a line for each: `rail` is its address, and `rank` its place (-1: forbidden); of those that are
    up only the ones of the least rank carry data."""

    transport: str
    usable: bool
    estimate_us: float
    why: str
    rail: str = ""
    rank: int = 0


def explain(
    target: Layout | AnySegment,
    nbytes: int | None,
    blocks: int,
    local: Segment | None = None,
) -> list[Choice]:
    """See Engine.explain."""
    segment = target.segment if isinstance(target, Layout) else target
    size = target.nbytes if nbytes is None else nbytes
    why = reasons(segment)
    offered: tuple[str, ...]
    has_nixl = isinstance(segment, RemoteSegment) and segment.peer.nixl is not None
    if isinstance(segment, RemoteSegment):
        offered = segment.peer.offers(segment)
    else:
        offered = (own_transport(segment),)
    medium = MEDIUM_COSTS[segment.cost_class]
    choices = [
        Choice(name, name in offered, _estimate_us(name, medium, blocks, size), why[name])
        for name in why
        if name != "nixl" or has_nixl
    ]
    if isinstance(segment, RemoteSegment) and len(segment.peer.rails.paths) > 1:
        near_node = UNKNOWN_NODE if local is None else local.location.numa_node
        choices[-1:] = _rails(segment, choices[-1], near_node)
    order = {name: place for place, name in enumerate(offered)}
    return sorted(choices, key=lambda one: (not one.usable, order.get(one.transport, 0)))


def _rails(segment: RemoteSegment, tcp: Choice, near_node: int) -> list[Choice]:
    """`tcp` for each rail, the best first."""
    rails = segment.peer.rails
    lines = {line.address: line for line in rails.lines}
    views = rails.views()
    choices = list[Choice]()
    for address, rank, why in rails.rankings(near_node, segment.location.numa_node):
        if rank is None:
            choices.append(tcp._replace(usable=False, why=why, rail=address, rank=-1))
            continue
        line, view = lines[address], views.get(address)
        state = f"down ({line.why})" if not line.up or view is None else view.state.value
        usable = tcp.usable and line.up
        why = f"rank {rank}, {state}; {why}"
        choices.append(tcp._replace(usable=usable, why=why, rail=address, rank=rank))
    return choices


def own_transport(segment: Segment | FileSegment | VramSegment) -> str:
    """The one transport that reaches a segment of this process."""
    if isinstance(segment, VramSegment):
        return "vram"
    return "file" if isinstance(segment, FileSegment) else "local"


def reasons(segment: AnySegment) -> dict[str, str]:
    """Per transport that comes into question, why it can or cannot reach `segment`."""
    if isinstance(segment, VramSegment):
        other = "the segment is a device's memory"
        why = {"local": other, "shm": other, "tcp": other, "nixl": other}
        return why | {"vram": f"memory of {segment.device.name} that this process has"}
    if isinstance(segment, FileSegment):
        other = "the segment is a file"
        why = {"local": other, "shm": other, "tcp": other, "file": "a file this process opened"}
        return why | {"nixl": "off here (transfer.nixl)"}
    if isinstance(segment, Segment):
        other = "the segment belongs to this process"
        why = {"local": "both ends are in this process", "shm": other, "tcp": other}
        return why | {"nixl": other}
    peer = segment.peer
    here = peer.local_segment(segment) is not None
    return {
        "local": "the peer is this process" if here else "the peer is another process",
        "shm": peer.why_no_shm(segment) or "same host, and the peer shares this memory",
        "nixl": peer.why_no_nixl(segment) or "both ends have it",
        "tcp": f"the peer hangs: {peer.hung}"
        if peer.hung
        else "always there"
        if peer.alive
        else "the connection is lost; the next op makes it",
    }


def _estimate_us(transport: str, medium: MediumCost, blocks: int, nbytes: int) -> float:
    call_us, block_us, s_per_gb = _COSTS[transport]
    blocks_us = (block_us + medium.block_us) * blocks
    return call_us + blocks_us + (s_per_gb + medium.s_per_gb) * nbytes / 1000
