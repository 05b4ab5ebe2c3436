"""The soak: 60 s here, ten minutes in `make soak`, or as long as SOAK_S says. Prints its seed;
SOAK_SEED draws the same again.
"""

import gc
import os
import secrets
import tempfile
import threading
from pathlib import Path

import pytest

from tests.transfer.owner import wait_until
from tests.transfer.rails.soak import soak_simulated
from tests.transfer.soak import Soak

SECONDS = float(os.environ.get("SOAK_S", "60"))


def seed() -> int:
    drawn = int(os.environ.get("SOAK_SEED", "0")) or secrets.randbits(32)
    print(f"SOAK_SEED={drawn}")
    return drawn


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def soak_tcp(seconds: float) -> dict[str, int]:
    """Real processes over TCP; nothing is left of it afterwards."""
    gc.collect()
    fds, threads = descriptors(), threading.active_count()
    with tempfile.TemporaryDirectory(prefix="mp-") as folder:
        soak = Soak(seed(), folder)
        try:
            soak.run(seconds)
        except BaseException:
            print("\n".join(soak.log[-200:]))
            raise
        finally:
            soak.close()
    counts = soak.counts
    del soak
    gc.collect()
    wait_until(lambda: threading.active_count() <= threads and descriptors() <= fds)
    print(dict(sorted(counts.items())))
    return counts


@pytest.mark.soak
@pytest.mark.faults
def test_random_ops_while_the_peer_is_cut_held_up_stopped_and_killed() -> None:
    counts = soak_tcp(0.7 * SECONDS)
    assert counts["read DONE"] and counts["write DONE"]


@pytest.mark.soak
def test_random_ops_over_simulated_rails() -> None:
    assert soak_simulated(seed(), 0.3 * SECONDS) > 0
