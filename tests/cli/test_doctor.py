"""`moonpool doctor` on this machine and on made-up ones."""

import json
import resource
import socket
from pathlib import Path

import pytest

from moonpool.cli import doctor, main
from moonpool.cli.probes.devices import gpu, rdma
from moonpool.cli.probes.finding import Finding, State
from moonpool.cli.probes.kernel import io_uring, owner_locks, processor
from moonpool.cli.probes.memory import (
    locked_memory,
    memory_limit,
    reserved_huge_pages,
    shared_memory,
    transparent_huge_pages,
)
from moonpool.cli.probes.network import probe_port
from moonpool.core.sections import MasterConfig, NodeConfig


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings that fit any machine the tests run on."""
    monkeypatch.setenv("MOONPOOL_NODE_MEMORY", "1MiB")
    monkeypatch.setenv("MOONPOOL_NODE_DIR", str(tmp_path / "segments"))


@pytest.mark.usefixtures("small")
def test_json_is_one_object_per_finding(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"what", "state", "detail", "advice"} == set(rows[0])
    seen = {row["what"] for row in rows}
    assert {"native core", "shared memory", "io_uring", "rdma", "gpu", "master port"} <= seen
    assert {"NUMA nodes", "interfaces"} <= seen


@pytest.mark.usefixtures("small")
def test_the_report_ends_with_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor"])
    verdict = "can run here" if status == 0 else "cannot run here yet"
    assert verdict in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("state", "status"), [(State.LIMITED, 0), (State.FAILED, 1)])
def test_only_failures_fail(monkeypatch: pytest.MonkeyPatch, state: State, status: int) -> None:
    monkeypatch.setattr(doctor, "examine", lambda *_: [Finding("thing", state, "seen", "do")])
    assert main(["doctor"]) == status


def test_everything_not_ok_says_what_to_do(tmp_path: Path) -> None:
    master, node = MasterConfig(), NodeConfig(dir=str(tmp_path))
    for finding in doctor.examine(master, node, False, root=tmp_path):
        optional_kernel_part = finding.what == "huge pages (shmem)"
        assert finding.state == State.OK or finding.advice or optional_kernel_part, finding


def test_shared_memory_that_is_not_there(tmp_path: Path) -> None:
    finding = shared_memory(tmp_path / "shm", 1)
    assert finding.state == State.FAILED
    assert "--shm-size" in finding.advice


def test_shared_memory_that_is_small(tmp_path: Path) -> None:
    finding = shared_memory(tmp_path, 1 << 60)
    assert finding.state == State.LIMITED
    assert "1 EiB by default" in finding.detail


def test_the_cgroup_limit_counts(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", "MemTotal: 8 kB\nMemAvailable:   4194304 kB\n")
    assert memory_limit(tmp_path, 1 << 30).state == State.OK
    write(tmp_path / "sys/fs/cgroup/memory.max", "1073741824\n")
    write(tmp_path / "sys/fs/cgroup/memory.current", "1000000000\n")
    assert memory_limit(tmp_path, 1 << 30).state == State.LIMITED


SHMEM = "always within_size advise {} deny force"


@pytest.mark.parametrize(
    ("over_all", "options", "state"),
    [
        ("[never]", "rw,size=8g", State.LIMITED),
        ("[advise]", "rw,size=8g", State.LIMITED),
        ("[never]", "rw,huge=advise", State.OK),
        ("[never]", "rw,huge=within_size,inode64", State.OK),
        ("never [deny]", "rw,huge=advise", State.LIMITED),
        ("never [force]", "rw", State.OK),
        (None, "rw,huge=advise", State.ABSENT),
    ],
)
def test_transparent_huge_pages(
    tmp_path: Path, over_all: str | None, options: str, state: State
) -> None:
    """What counts for a file is how its tmpfs is mounted."""
    if over_all is not None:
        write(tmp_path / "sys/kernel/mm/transparent_hugepage/shmem_enabled", SHMEM.format(over_all))
    lines = ["proc /proc proc rw 0 0", f"shm /dev/shm tmpfs {options} 0 0", "t /t tmpfs rw 0 0"]
    write(tmp_path / "proc/mounts", "\n".join(lines))
    finding = transparent_huge_pages(tmp_path)
    assert finding.state == state
    if state == State.LIMITED:
        assert "as root: " in finding.advice


def test_reserved_huge_pages(tmp_path: Path) -> None:
    assert reserved_huge_pages(tmp_path).state == State.ABSENT
    meminfo = "HugePages_Total: 8\nHugePages_Free: 5\nHugepagesize: 2048 kB\n"
    write(tmp_path / "proc/meminfo", meminfo)
    assert reserved_huge_pages(tmp_path).state == State.LIMITED
    write(tmp_path / "proc/mounts", "none /dev/hugepages hugetlbfs rw 0 0\n")
    finding = reserved_huge_pages(tmp_path)
    assert finding.state == State.OK
    assert finding.detail == "5 of 8 pages of 2 MiB free, mounted at /dev/hugepages"


def test_locked_memory() -> None:
    assert locked_memory(resource.RLIM_INFINITY).state == State.OK
    assert locked_memory(8 << 20).detail == "limit 8 MiB"


def test_processor_flags_of_both_architectures(tmp_path: Path) -> None:
    write(tmp_path / "proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu sse4_2 sha_ni\n")
    assert "sse4_2 sha_ni" in processor(tmp_path).detail
    write(tmp_path / "proc/cpuinfo", "processor\t: 0\nFeatures\t: fp crc32 sha2\n")
    assert "crc32 sha2" in processor(tmp_path).detail


def test_kernel_probes_answer(tmp_path: Path) -> None:
    assert io_uring(tmp_path).state in (State.OK, State.ABSENT)
    assert owner_locks().state == State.OK


@pytest.mark.parametrize(
    ("port_state", "device", "state"),
    [
        ("4: ACTIVE", True, State.OK),
        ("4: ACTIVE", False, State.LIMITED),
        ("1: DOWN", True, State.LIMITED),
    ],
)
def test_rdma(tmp_path: Path, port_state: str, device: bool, state: State) -> None:
    assert rdma(tmp_path).state == State.ABSENT
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    write(port / "state", port_state)
    write(port / "link_layer", "InfiniBand")
    write(port / "rate", "400 Gb/sec (4X NDR)")
    if device:
        write(tmp_path / "dev/infiniband/uverbs0", "")
    finding = rdma(tmp_path)
    assert finding.state == state
    assert "mlx5_0/1" in finding.detail and "400 Gb/sec" in finding.detail


def test_a_gpu_without_its_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu(tmp_path).state == State.ABSENT
    write(tmp_path / "dev/nvidia0", "")
    write(tmp_path / "dev/nvidiactl", "")
    assert gpu(tmp_path).detail.startswith("1 devices")


def test_a_gpu_with_its_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    write(program, "#!/bin/sh\necho 'NVIDIA X, 80 GiB'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu(tmp_path) == Finding("gpu", State.OK, "NVIDIA X, 80 GiB")


def test_a_port_that_is_taken_and_then_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert probe_port("127.0.0.1", port).state == State.LIMITED
    assert probe_port("127.0.0.1", 0).state == State.OK


def test_a_host_that_is_not_ours() -> None:
    assert probe_port("192.0.2.1", 7400).state == State.FAILED
