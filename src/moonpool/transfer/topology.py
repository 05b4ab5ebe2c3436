"""Where memory and network cards are: NUMA nodes and interfaces of this machine, from sysfs."""

import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from moonpool.transfer.cost import CostClass

UNKNOWN_NODE: Final = -1


class Location(NamedTuple):
    """Where a segment's memory is: the host's identity, the NUMA node (-1 where nobody knows), the
    device as 'cpu', 'cuda:0' or 'nvme0n1', and what kind of memory it is."""

    host: str = ""
    numa_node: int = UNKNOWN_NODE
    device: str = "cpu"
    cost_class: CostClass = CostClass.DRAM


# Nothing is known of it: memory of an engine that does not say.
SOMEWHERE: Final = Location()


class Nic(NamedTuple):
    """A network interface. `speed_mbps` is 0 where it has none; `kind` is loopback, card or
    virtual."""

    name: str
    numa_node: int
    speed_mbps: int
    up: bool
    kind: str

    def described(self) -> str:
        """'eth0 (card, node 0, 25 Gb/s)'."""
        parts = [self.kind]
        if self.numa_node != UNKNOWN_NODE:
            parts.append(f"node {self.numa_node}")
        if self.speed_mbps:
            parts.append(f"{self.speed_mbps / 1000:g} Gb/s")
        if not self.up:
            parts.append("down")
        return f"{self.name} ({', '.join(parts)})"


class NumaNode(NamedTuple):
    """A node: its CPUs as the kernel writes them ('0-15,32-47') and its memory."""

    node: int
    cpus: str
    memory_bytes: int


class Topology(NamedTuple):
    """What discover() found; nodes and interfaces in order."""

    nodes: tuple[NumaNode, ...]
    nics: tuple[Nic, ...]

    def nic(self, name: str) -> Nic | None:
        """The interface of that name."""
        return next((nic for nic in self.nics if nic.name == name), None)


def discover(sys: Path = Path("/sys")) -> Topology:
    """NUMA nodes and interfaces of this machine. What cannot be read is left out or unknown."""
    nodes = sorted(
        (_node(folder) for folder in (sys / "devices/system/node").glob("node[0-9]*")),
        key=lambda node: node.node,
    )
    nics = sorted(
        (_nic(folder) for folder in (sys / "class/net").glob("*") if folder.is_dir()),
        key=lambda nic: nic.name,
    )
    return Topology(tuple(nodes), tuple(nics))


@cache
def this_machine() -> Topology:
    """What discover() found when it was first asked."""
    return discover()


def place_of(address: int) -> int:
    """The node of memory of this process: on a machine of one node nothing has to be looked up."""
    nodes = this_machine().nodes
    if len(nodes) == 1:
        return nodes[0].node
    return node_of_memory(address) if nodes else UNKNOWN_NODE


def node_of_memory(address: int, numa_maps: Path = Path("/proc/self/numa_maps")) -> int:
    """The node that holds most of the mapping that `address` lies in; -1 where nobody knows (pages
    not touched yet are nowhere)."""
    best_start, counts = -1, ""
    for line in _text(numa_maps).splitlines():
        start_text, _, rest = line.partition(" ")
        start = _hexadecimal(start_text)
        if best_start < start <= address:
            best_start, counts = start, rest
    pages = [(int(count), int(node)) for node, count in re.findall(r"\bN(\d+)=(\d+)", counts)]
    return max(pages)[1] if pages else UNKNOWN_NODE


def _hexadecimal(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return -1


def _node(folder: Path) -> NumaNode:
    found = re.search(r"MemTotal:\s+(\d+) kB", _text(folder / "meminfo"))
    memory_bytes = 1024 * int(found.group(1)) if found else 0
    return NumaNode(int(folder.name[4:]), _text(folder / "cpulist"), memory_bytes)


def _nic(folder: Path) -> Nic:
    kind = "virtual"
    if _text(folder / "type") == "772":  # ARPHRD_LOOPBACK
        kind = "loopback"
    elif (folder / "device").exists():
        kind = "card"
    speed = max(0, _number(folder / "speed", 0))
    # Loopback says 'unknown', and is up.
    up = _text(folder / "operstate") in ("up", "unknown")
    return Nic(folder.name, _number(folder / "device/numa_node", UNKNOWN_NODE), speed, up, kind)


def _number(path: Path, otherwise: int) -> int:
    try:
        return int(_text(path))
    except ValueError:
        return otherwise


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        # A card that is down refuses to tell its speed; others have no such file.
        return ""
