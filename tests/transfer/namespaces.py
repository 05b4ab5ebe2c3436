"""Two rails between two network namespaces: `unshare -rn python -m tests.transfer.namespaces DIR`
makes the second namespace, two veth pairs shaped 1:3, and an owner at the far end; moves bytes,
takes a link down in mid-transfer and up again. Prints what happened as JSON; raises when a byte is
wrong.
"""

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np

from moonpool.transfer.engine import Engine
from moonpool.transfer.peer import Peer
from moonpool.transfer.rails import RailState, StripedOp
from tests.transfer.conftest import stamped
from tests.transfer.owner import BIG_BYTES, BIG_SEED, Owner, wait_until

TOKEN = "a token, since no namespace's veth is loopback"
RATES_MBIT = {"slow": 100, "fast": 300}
NET = {"slow": 1, "fast": 2}


def run(*command: str) -> str:
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout


def make_links(far: str) -> bool:
    """False when this kernel cannot shape; the links are there all the same."""
    inside = ("nsenter", "-t", far, "-n")
    run("ip", "link", "set", "lo", "up")
    run(*inside, "ip", "link", "set", "lo", "up")
    shaped = True
    for name, net in NET.items():
        run("ip", "link", "add", f"{name}0", "type", "veth", "peer", f"{name}1", "netns", far)
        for within, end in (((), 0), (inside, 1)):
            device = f"{name}{end}"
            run(*within, "ip", "addr", "add", f"10.77.{net}.{end + 1}/24", "dev", device)
            run(*within, "ip", "link", "set", device, "up")
            rate = f"{RATES_MBIT[name]}mbit"
            shape = ("tbf", "rate", rate, "burst", "64k", "latency", "50ms")
            try:
                run(*within, "tc", "qdisc", "add", "dev", device, "root", *shape)
            except subprocess.CalledProcessError:
                shaped = False
    return shaped


def shares(op: StripedOp, peer: Peer) -> dict[str, int]:
    slow, fast = (line.address for line in peer.rails.lines)
    return {"slow": op.rail_bytes.get(slow, 0), "fast": op.rail_bytes.get(fast, 0)}


def both_up(peer: Peer) -> bool:
    return len(peer.rails.lines) == 2 and all(line.up for line in peer.rails.lines)


def moves(engine: Engine, peer: Peer, down: str = "") -> dict[str, Any]:
    """A read of all of `big`; `down` is a link that is taken down once bytes have begun to come."""
    memory = engine.allocate(BIG_BYTES)
    op = engine.read(memory, None, peer.segment("big"), None)
    assert isinstance(op, StripedOp), op
    if down:
        wait_until(lambda: bool(op.rail_bytes))
        run("ip", "link", "set", f"{down}0", "down")
    op.wait()
    op.check()
    assert np.array_equal(memory.array, stamped(BIG_BYTES, BIG_SEED)), "wrong bytes"
    return shares(op, peer)


def writes(engine: Engine, peer: Peer, down: str) -> dict[str, Any]:
    mine = stamped(BIG_BYTES, 77)
    op = engine.write(engine.register(mine), None, peer.segment("big"), None)
    assert isinstance(op, StripedOp), op
    wait_until(lambda: bool(op.rail_bytes))
    run("ip", "link", "set", f"{down}0", "down")
    op.wait()
    op.check()
    there = engine.allocate(BIG_BYTES)
    back = engine.read(there, None, peer.segment("big"), None)
    back.wait()
    back.check()
    assert np.array_equal(there.array, mine), "wrong bytes"
    return shares(op, peer)


def main(folder: str) -> None:
    holder = subprocess.Popen(
        ["unshare", "-n", "sh", "-c", "echo ready; exec sleep 1000"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        far = str(holder.pid)
        shaped = make_links(far)
        os.environ["OWNER_TOKEN"] = TOKEN
        hosts = [f"10.77.{net}.2" for net in NET.values()]
        options: dict[str, Any] = {"token": TOKEN, "shared_memory": False, "deadline_ms": 60_000}
        with (
            Owner(folder, hosts=hosts, within=("nsenter", "-t", far, "-n")) as owner,
            Engine(dir=folder, slice_bytes=256 << 10, **options) as engine,
        ):
            # The first is the far namespace's loopback, and of no use here.
            peer = engine.connect(owner.addresses[1])
            wait_until(lambda: both_up(peer))
            moves(engine, peer)
            told = {
                "shaped": shaped,
                "nics": [path.ours and path.ours.name for path in peer.rails.paths],
            }
            told["both"] = moves(engine, peer)
            told["fast went down"] = moves(engine, peer, down="fast")
            run("ip", "link", "set", "fast0", "up")
            wait_until(lambda: both_up(peer))
            fast = peer.rails.lines[1].address
            while peer.rails.views()[fast].state is not RailState.UP:
                moves(engine, peer)
            told["fast is back"] = moves(engine, peer)
            told["slow went down under a write"] = writes(engine, peer, down="slow")
            print(json.dumps(told))
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


if __name__ == "__main__":
    main(sys.argv[1])
