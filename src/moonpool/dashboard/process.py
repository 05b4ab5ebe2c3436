"""The admin service as a child of `moonpool up`: configured on stdin, ended with its parent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from moonpool.core.admin_section import AdminConfig
from moonpool.core.errors import MoonpoolError, NotReady
from moonpool.dashboard.server import run_admin
from moonpool.pool.children import first_line, reap, uninterrupted
from moonpool.pool.cluster import Child
from moonpool.pool.process import end_with

START_S: Final = 20.0
STOP_S: Final = 5.0


@contextmanager
def admin_child(config: AdminConfig) -> Iterator[Child]:
    """A process that serves, alive inside `with`; `ready` has its `url`. Raises NotReady when it
    does not come up."""
    with uninterrupted():
        # A session of its own: Ctrl-C reaches the parent only, which ends all in order.
        process = subprocess.Popen(
            [sys.executable, "-m", "moonpool.dashboard.process", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
    try:
        assert process.stdin is not None
        with process.stdin as stdin:
            stdin.write(msgspec.json.encode(msgspec.structs.asdict(config)) + b"\n")
        line = first_line(process, time.monotonic() + START_S)
        told = json.loads(line or b"{}")
        if "url" not in told:
            raise NotReady(f"the admin process: {told.get('error', 'it did not start in time')}")
        yield Child("admin", "admin", process, told)
    finally:
        process.terminate()
        reap(process, time.monotonic() + STOP_S)


def main() -> int:
    """Serve until SIGTERM; says its URL, or why there is none, in one line of JSON."""
    end_with(int(sys.argv[1]))
    config = AdminConfig(**json.loads(sys.stdin.readline()))
    try:
        run_admin(config, lambda url, _: print(json.dumps({"url": url}), flush=True))
    except MoonpoolError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
