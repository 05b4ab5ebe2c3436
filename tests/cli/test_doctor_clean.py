"""Leftovers of dead processes: shown, and removed only when asked and surely dead."""

import socket
from pathlib import Path

import pytest

from moonpool import _core
from moonpool.cli import main
from moonpool.cli.probes.finding import State
from moonpool.cli.probes.segments import probe_segments


class Files:
    """Segment files by name: 'dead', 'alive', 'adopted' (alive by the time of removal)."""

    def __init__(self) -> None:
        self.removed: list[str] = []

    def segment_info(self, path: str) -> dict[str, object]:
        name = Path(path).name
        if name == "unreadable":
            raise RuntimeError("permission denied")
        return {
            "problem": "wrong magic" if name == "strange" else None,
            "owner_alive": name == "alive",
            "owner_pid": 77,
            "clients_alive": 2 if name == "dead" else 0,
            "file_bytes": 1 << 20,
        }

    def remove_dead_segment(self, path: str) -> bool:
        if Path(path).name == "adopted":
            return False
        Path(path).unlink()
        self.removed.append(Path(path).name)
        return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "segments"
    path.mkdir(mode=0o700)
    for name in ("dead", "alive", "strange", "unreadable", "adopted"):
        (path / name).touch()
    return path


def details(folder: Path, files: Files, clean: bool) -> dict[str, tuple[State, str]]:
    findings = probe_segments(folder, files, clean)[1:]
    return {Path(f.detail.partition(":")[0]).name: (f.state, f.detail + f.advice) for f in findings}


def test_looking_removes_nothing(folder: Path) -> None:
    files = Files()
    seen = details(folder, files, clean=False)
    assert files.removed == []
    assert seen["alive"][0] == State.OK
    assert "owner 77 lives, 1 MiB" in seen["alive"][1]
    assert seen["dead"][0] == State.LIMITED
    assert "2 clients still map it" in seen["dead"][1]
    assert "doctor --clean" in seen["dead"][1]


def test_clean_removes_the_dead_only(folder: Path) -> None:
    files = Files()
    seen = details(folder, files, clean=True)
    assert files.removed == ["dead"]
    assert seen["dead"][1].endswith("removed")
    assert "adopted it meanwhile" in seen["adopted"][1]


@pytest.mark.parametrize("name", ["strange", "unreadable"])
def test_what_is_not_surely_ours_is_left_to_people(folder: Path, name: str) -> None:
    seen = details(folder, Files(), clean=True)
    assert (folder / name).exists()
    assert seen[name][0] == State.LIMITED
    assert f"rm {folder / name}" in seen[name][1]


def test_sockets_without_a_listener(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as alive, socket.socket(socket.AF_UNIX) as dead:
        alive.bind(str(folder / "alive.sock"))
        alive.listen()
        dead.bind(str(folder / "dead.sock"))
        dead.close()
        seen = details(folder, Files(), clean=False)
        assert "dead.sock" in seen and "alive.sock" not in seen
        details(folder, Files(), clean=True)
    assert (folder / "alive.sock").exists()
    assert not (folder / "dead.sock").exists()


def test_a_folder_open_to_others_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    finding = probe_segments(tmp_path, Files(), clean=True)[0]
    assert finding.state == State.FAILED
    assert f"chmod 700 {tmp_path}" in finding.advice


def test_no_folder_is_fine(tmp_path: Path) -> None:
    assert [f.state for f in probe_segments(tmp_path / "none", Files(), clean=True)] == [State.OK]


def test_real_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "segments"
    monkeypatch.setenv("MOONPOOL_NODE_DIR", str(folder))
    monkeypatch.setenv("MOONPOOL_NODE_MEMORY", "1MiB")
    alive = _core.SegmentAgent.create(str(folder / "alive.seg"), 1 << 20, 0, 16)
    dead = _core.SegmentAgent.create(str(folder / "dead.seg"), 1 << 20, 0, 16)
    dead.close()
    assert main(["doctor"]) == 0
    assert (folder / "dead.seg").exists()
    assert main(["doctor", "--clean"]) == 0
    assert [path.name for path in folder.iterdir()] == ["alive.seg"]
    assert f"{folder}/dead.seg: owner is dead" in capsys.readouterr().out
    alive.destroy()
