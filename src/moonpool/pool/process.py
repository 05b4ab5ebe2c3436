"""A child process of `Cluster`: one master or node, configured on stdin, ended with its parent.

The configuration comes as one JSON line on stdin, so that no token stands in a process list.
The answer is the one JSON line a master or node prints when it is ready.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

from moonpool.core.errors import MoonpoolError
from moonpool.core.sections import MasterConfig, NodeConfig

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """SIGTERM for this process as soon as process `parent`, which started it, ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the wish was known
        sys.exit(1)


def main() -> int:
    """Run the role named by the first argument until SIGTERM."""
    role, parent = sys.argv[1], int(sys.argv[2])
    end_with(parent)
    settings = json.loads(sys.stdin.readline())
    try:
        if role == "master":
            from moonpool.pool.master import run_master

            run_master(MasterConfig(**settings))
        else:
            from moonpool.pool.node import run_node

            run_node(NodeConfig(**settings))
    except MoonpoolError as error:
        print(f"{role}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
