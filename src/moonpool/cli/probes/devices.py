"""RDMA adapters and GPUs. Both are optional: TCP and shared memory are always there."""

import shutil
import subprocess
from pathlib import Path

from moonpool.cli.probes.finding import Finding, State, read_text

_SMI_TIMEOUT_S = 10


def probe_devices(root: Path) -> list[Finding]:
    """All findings about devices."""
    return [rdma(root), gpu(root)]


def rdma(root: Path) -> Finding:
    """Adapters the kernel knows, and which of their ports are up."""
    adapters = sorted((root / "sys/class/infiniband").glob("*"))
    if not adapters:
        return Finding("rdma", State.ABSENT, "no adapter", "optional; TCP is used between hosts")
    ports = [_port(port) for adapter in adapters for port in sorted(adapter.glob("ports/*"))]
    detail = "; ".join(ports) or ", ".join(adapter.name for adapter in adapters)
    if not any("ACTIVE" in port for port in ports):
        return Finding(
            "rdma", State.LIMITED, f"{detail}: no port is up", "check cable and subnet manager"
        )
    if not list((root / "dev/infiniband").glob("uverbs*")):
        advice = "pass the device into the container: --device /dev/infiniband"
        return Finding("rdma", State.LIMITED, f"{detail}; /dev/infiniband is missing", advice)
    return Finding("rdma", State.OK, detail)


def _port(port: Path) -> str:
    state = (read_text(port / "state") or "?").rpartition(":")[2].strip()
    link = read_text(port / "link_layer") or "?"
    rate = read_text(port / "rate") or "?"
    return f"{port.parent.parent.name}/{port.name} {state} {link} {rate}"


def gpu(root: Path) -> Finding:
    """NVIDIA devices, by their files; names by nvidia-smi where it is installed."""
    devices = [path for path in sorted((root / "dev").glob("nvidia*")) if path.name[6:].isdigit()]
    names = _smi_names()
    if not devices and not names:
        return Finding("gpu", State.ABSENT, "no NVIDIA device", "optional; host memory is pooled")
    if not names:
        advice = "install the driver's tools, or pass them into the container (--gpus all)"
        return Finding(
            "gpu", State.LIMITED, f"{len(devices)} devices, nvidia-smi is silent", advice
        )
    return Finding("gpu", State.OK, "; ".join(names))


def _smi_names() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
