"""A master or node that speaks only the message version before the newest one: `python -m` as the
product's own process. What a release changes for the wire is decided by the version agreed, so
this is its other path, in a process of its own."""

import sys

from moonpool.pool import messages as m
from moonpool.pool.process import main

m.VERSIONS = (m.PROTOCOL_VERSION - 1, m.PROTOCOL_VERSION - 1)

if __name__ == "__main__":
    sys.exit(main())
