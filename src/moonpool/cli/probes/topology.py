"""NUMA nodes and network interfaces, as the transfer engine ranks rails by them."""

from pathlib import Path

from moonpool.cli.probes.finding import Finding, State
from moonpool.core.units import format_bytes


def probe_topology(root: Path) -> list[Finding]:
    """Nodes, and the interfaces that are up."""
    from moonpool.transfer.topology import discover

    found = discover(root / "sys")
    nodes = [
        f"node {node.node}: CPUs {node.cpus}, {format_bytes(node.memory_bytes)}"
        for node in found.nodes
    ]
    up = [nic.described() for nic in found.nics if nic.up]
    return [
        Finding("NUMA nodes", State.OK, "; ".join(nodes))
        if nodes
        else Finding("NUMA nodes", State.ABSENT, "none to be seen", "rails are ranked without"),
        Finding("interfaces", State.OK, ", ".join(up))
        if up
        else Finding("interfaces", State.ABSENT, "none is up", "only this machine is reached"),
    ]
