"""Whether NIXL reaches a peer's segment, and whether it is worth trying before our own TCP."""

from moonpool.core.host import host_id
from moonpool.transfer.info_page import EngineInfo
from moonpool.transfer.nixl.package import has_rdma


def why_not(here: bool, info: EngineInfo | None, segment: str, hung: str) -> str:
    """The reason why not, '' when it does."""
    if not here:
        return "off here (transfer.nixl)"
    if info is None or info.nixl is None:
        return "off at the peer (transfer.nixl)"
    if segment not in info.nixl.segments:
        return "the segment is not registered with NIXL; peer.refresh() looks again"
    return f"the peer hangs: {hung}" if hung else ""


def is_near(info: EngineInfo | None) -> bool:
    """One process can read the other's memory, or a card can. Otherwise UCX would take its own TCP,
    which is slower than ours and worse when a peer hangs, so only who asks for it gets that."""
    return info is not None and (info.host == host_id() or has_rdma())
