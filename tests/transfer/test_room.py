"""How much memory there is, by machine and by control group."""

from pathlib import Path

import pytest

from moonpool.core.errors import SegmentSpace
from moonpool.transfer.room import available_bytes, require_room


def files(folder: Path, meminfo: str, limit: str, used: str) -> tuple[Path, Path]:
    (folder / "meminfo").write_text(meminfo)
    (folder / "memory.max").write_text(limit)
    (folder / "memory.current").write_text(used)
    return folder / "meminfo", folder


@pytest.mark.parametrize(
    ("meminfo", "limit", "used", "want"),
    [
        ("MemFree: 1 kB\nMemAvailable: 10 kB\n", "max\n", "5\n", 10_240),
        ("MemAvailable: 10 kB\n", "4096\n", "96\n", 4000),
        ("MemAvailable: 10 kB\n", "4096\n", "5000\n", 0),
        ("", "", "", 2**63 - 1),
    ],
)
def test_the_lesser_counts(tmp_path: Path, meminfo: str, limit: str, used: str, want: int) -> None:
    assert available_bytes(*files(tmp_path, meminfo, limit, used)) == want


def test_without_the_files_nothing_is_refused(tmp_path: Path) -> None:
    assert available_bytes(tmp_path / "no", tmp_path / "no") == 2**63 - 1


def test_too_much_is_refused_with_the_figures() -> None:
    require_room(4096)
    with pytest.raises(SegmentSpace, match="2 EiB"):
        require_room(2 << 60)
