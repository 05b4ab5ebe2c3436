"""A sender in a process of its own: `python -m tests.transfer.sender FOLDER ADDRESS` writes stamped
bytes to "kv" at that address by shared memory, with a notification that nobody answers."""

import sys

from moonpool.transfer import Engine
from tests.transfer.conftest import stamped

NBYTES, SEED = 1 << 16, 21


def main(folder: str, address: str) -> None:
    with Engine(dir=folder, heartbeat_ms=0) as engine:
        peer = engine.connect(address)
        mine = engine.register(stamped(NBYTES, SEED))
        print("connected", flush=True)
        sys.stdin.readline()
        far = peer.segment("kv")
        engine.write(mine, None, far, None, deadline=60.0, transport="shm", notify=b"never heard")
        print("written", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
