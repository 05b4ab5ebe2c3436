"""A segment of huge pages. On hugetlbfs, skipped where none are reserved (`sysctl
vm.nr_hugepages=16`, as root, reserves enough); and in a tmpfs mounted with huge=advise, which this
makes in a mount namespace of its own, as root."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from moonpool import _core
from tests.transfer.shared_segment import put

MIB = 1 << 20


class Huge(NamedTuple):
    folder: Path
    page_bytes: int
    free: int


def mounts() -> list[str]:
    lines = Path("/proc/mounts").read_text().splitlines()
    return [line.split()[1] for line in lines if line.split()[2] == "hugetlbfs"]


@pytest.fixture
def huge() -> Iterator[Huge]:
    """A folder on a mount with pages to spare, and what its pages are."""
    whys = ["no hugetlbfs is mounted"]
    for mount in mounts():
        at = os.statvfs(mount)
        free = int(
            Path("/sys/kernel/mm/hugepages")
            .joinpath(f"hugepages-{at.f_bsize >> 10}kB", "free_hugepages")
            .read_text()
        )
        if not os.access(mount, os.W_OK):
            whys.append(f"{mount} is not ours to write to")
        elif free * at.f_bsize < 16 * MIB:
            whys.append(f"{free} pages of {at.f_bsize} bytes are free for {mount}")
        else:
            with tempfile.TemporaryDirectory(dir=mount) as folder:
                yield Huge(Path(folder), at.f_bsize, free)
            return
    pytest.skip(whys[-1])


def test_a_segment_of_huge_pages_outlives_its_owner(huge: Huge) -> None:
    path = str(huge.folder / "segment")
    data = os.urandom(3 * MIB)
    agent = _core.SegmentAgent.create(path, 4 * MIB, 0, 64)
    assert os.stat(path).st_size % huge.page_bytes == 0
    at = put(agent, data, b"key")
    reader = _core.SegmentClient(path)
    assert reader.read_bytes(at.slot, at.generation) == data
    agent.close()
    assert reader.read_bytes(at.slot, at.generation) == data
    again = _core.SegmentAgent.adopt(path)
    assert again.adopted["sealed"] == 1 and again.read(at.slot, at.generation) == data
    reader.close()
    again.destroy()


def test_too_few_pages_are_an_error_and_leave_no_file(huge: Huge) -> None:
    path = huge.folder / "segment"
    with pytest.raises(_core.SegmentSpace):
        _core.SegmentAgent.create(str(path), (huge.free + 1) * huge.page_bytes, 0, 64)
    assert not path.exists()


SEGMENT_ON_TMPFS = """
import sys
from moonpool import _core

path = sys.argv[1] + "/closed/segment"
agent = _core.SegmentAgent.create(path, 128 << 20, 0, 64)
for entry in open("/proc/self/smaps").read().split(path)[1:]:
    print(next(line for line in entry.splitlines() if line.startswith("ShmemPmdMapped")))
agent.destroy()
"""
MOUNTED = 'mount -t tmpfs -o {} none "$1" && exec "$2" -c "$3" "$1"'


@pytest.mark.parametrize(("options", "huge"), [("huge=advise", True), ("huge=never", False)])
def test_a_segment_gets_huge_pages_where_its_mount_allows_them(
    tmp_path: Path, options: str, huge: bool
) -> None:
    command = ["unshare", "--mount", "sh", "-c", MOUNTED.format(options), "sh", str(tmp_path)]
    done = subprocess.run(
        [*command, sys.executable, SEGMENT_ON_TMPFS], capture_output=True, text=True, timeout=60
    )
    if done.returncode and ("unshare" in done.stderr or "mount:" in done.stderr):
        pytest.skip("no mount namespace may be made here")
    assert done.returncode == 0, done.stderr
    mapped = sum(int(line.split()[1]) for line in done.stdout.splitlines())
    assert done.stdout and (mapped > 0) == huge
