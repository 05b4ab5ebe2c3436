"""The nixl transport: blocks moved by NIXL agents (UCX: RDMA, and one process reading another's
memory on one host), with this engine's deadlines, epochs, cancelling and retries around them.

NIXL has no deadline, and what it was asked for cannot be taken back: only an agent that is gone is
sure to touch nothing. So each engine has two, one that others read from and one that moves, and an
op that must end while NIXL still works on it ends when the moving agent has been torn down.
"""

from moonpool.transfer.nixl.package import installed
from moonpool.transfer.nixl.transport import NixlTransport, open_nixl

__all__ = ["NixlTransport", "installed", "open_nixl"]
