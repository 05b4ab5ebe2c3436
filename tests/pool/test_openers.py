"""Which way a client takes to a segment, by what its endpoint says."""

import pytest

from moonpool.pool import messages as m
from moonpool.pool.openers import PortOpener


@pytest.mark.parametrize(
    ("medium", "kind"), [(m.MEMORY, "tcp"), ("disk", "disk"), ("remote", "remote")]
)
def test_a_port_is_of_the_kind_of_its_medium(medium: str, kind: str) -> None:
    """A remote tier that passed for a disk was read before other nodes' disks."""
    endpoint = m.SegmentEndpoint(0, b"i" * 16, "n", "elsewhere", "127.0.0.1:1", medium=medium)
    opener = PortOpener("")
    assert opener.open(endpoint).kind == kind
    opener.close()
