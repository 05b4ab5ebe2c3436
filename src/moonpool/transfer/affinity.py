"""Which rails an op may take, in which order, and why: pure, over what is known of both ends.

    policy    ranks
    affinity  0 when each end's card is on the node of its memory, one more for each end that is not
    spread    all alike
    single    in the order of the addresses: the next one is for when those before are down

Rails of a higher rank carry slices only while none of a lower one is up. What is not known (no NUMA
nodes, a virtual interface) counts as near.
"""

from collections.abc import Sequence
from typing import NamedTuple

from moonpool.core.address import parse_address
from moonpool.core.errors import BadConfig, did_you_mean
from moonpool.transfer.topology import UNKNOWN_NODE, Nic


class RailPath(NamedTuple):
    """A way to a peer: its address, the interface we leave by, and the one it announced there
    (None: not known)."""

    address: str
    ours: Nic | None = None
    theirs: Nic | None = None


class RailPolicy(NamedTuple):
    """How rails are chosen. `pin` and `forbid` name our interfaces, addresses or hosts; an empty
    `pin` allows all that `forbid` does not name."""

    name: str = "affinity"
    pin: frozenset[str] = frozenset()
    forbid: frozenset[str] = frozenset()


class Ranking(NamedTuple):
    """A rail's place: `rank` is None where the policy forbids it."""

    address: str
    rank: int | None
    why: str


def names_of(text: str) -> frozenset[str]:
    """'eth0, 10.0.0.5' as names."""
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def check_names(policy: RailPolicy, interfaces: Sequence[str]) -> None:
    """Raises BadConfig for a name that is no interface of this machine and no address."""
    for setting, names in (("rail_pin", policy.pin), ("rail_forbid", policy.forbid)):
        for name in sorted(names):
            if name not in interfaces and not any(mark in name for mark in ".:"):
                hint = did_you_mean(name, interfaces)
                raise BadConfig(
                    f"transfer.{setting} names {name!r}, which is no interface of this machine "
                    f"({', '.join(interfaces)}) and no address.{hint}"
                )


def forbidden(path: RailPath, policy: RailPolicy) -> str:
    """Why the policy keeps this rail out; '' when it does not."""
    host = "" if path.address.startswith("unix:") else parse_address(path.address).host
    names = {path.address, host, "" if path.ours is None else path.ours.name} - {""}
    if hit := names & policy.forbid:
        return f"forbidden by transfer.rail_forbid ({', '.join(sorted(hit))})"
    if policy.pin and not names & policy.pin:
        return f"not among transfer.rail_pin ({', '.join(sorted(policy.pin))})"
    return ""


def ranked(
    paths: Sequence[RailPath], policy: RailPolicy, near_node: int, far_node: int
) -> list[Ranking]:
    """All rails, best first, for memory on our `near_node` and the peer's `far_node`."""
    rankings = list[Ranking]()
    for path in paths:
        if why := forbidden(path, policy):
            rankings.append(Ranking(path.address, None, why))
        elif policy.name == "affinity":
            rankings.append(_by_nodes(path, near_node, far_node))
        else:
            rank = len(rankings) if policy.name == "single" else 0
            rankings.append(Ranking(path.address, rank, f"policy {policy.name}"))
    return sorted(rankings, key=lambda one: (one.rank is None, one.rank or 0))


def _by_nodes(path: RailPath, near_node: int, far_node: int) -> Ranking:
    ends = [(path.ours, near_node, "our"), (path.theirs, far_node, "the peer's")]
    far = [(nic, node, whose) for nic, node, whose in ends if _apart(nic, node)]
    why = "; ".join(
        f"{whose} {nic.described()} is not on node {node}, where the memory is"
        for nic, node, whose in far
        if nic is not None
    )
    known = [nic.described() for nic, _, _ in ends if nic is not None]
    return Ranking(path.address, len(far), why or f"near: {' to '.join(known) or 'not known'}")


def _apart(nic: Nic | None, node: int) -> bool:
    return nic is not None and UNKNOWN_NODE not in (nic.numa_node, node) and nic.numa_node != node
