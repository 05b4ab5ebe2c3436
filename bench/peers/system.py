"""The system's part of the rivals: the libraries of the Mooncake wheel, and redis-server.

    python -m bench.peers.system

Installs what is absent when it may (root, on a Debian), else says what to install. Status 1 when
something is absent after all.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Final, NamedTuple


class Need(NamedTuple):
    """A Debian package, and whether what we need of it is here."""

    package: str
    present: Callable[[], bool]


def _library(name: str) -> Callable[[], bool]:
    def present() -> bool:
        try:
            ctypes.CDLL(name)
        except OSError:
            return False
        return True

    return present


NEEDS: Final = (
    Need("libibverbs1", _library("libibverbs.so.1")),
    Need("librdmacm1", _library("librdmacm.so.1")),
    Need("libnuma1", _library("libnuma.so.1")),
    Need("liburing2", _library("liburing.so.2")),
    Need("libcurl4", _library("libcurl.so.4")),
    Need("redis-server", lambda: shutil.which("redis-server") is not None),
)


INSTALL: Final = ("apt-get", "install", "-q", "-y", "--no-install-recommends")


def absent() -> list[str]:
    """The packages of what is not here."""
    return [need.package for need in NEEDS if not need.present()]


def install(packages: list[str]) -> None:
    """Through apt-get, without a question."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-q"], [*INSTALL, *packages]):
        subprocess.run(command, check=False, env=environment, stdout=sys.stderr)


def main() -> int:
    packages = absent()
    if packages and os.geteuid() == 0 and shutil.which("apt-get"):
        install(packages)
        packages = absent()
    if packages:
        print("bench-peers lacks parts of the system; on Debian, as root:", file=sys.stderr)
        print(f"    {' '.join([*INSTALL, *packages])}", file=sys.stderr)
    return 1 if packages else 0


if __name__ == "__main__":
    sys.exit(main())
