"""Rails over two network namespaces, where this machine lets a user make them."""

import json
import shutil
import subprocess
import sys
import tempfile

import pytest

pytestmark = pytest.mark.faults


def why_not() -> str:
    """Why no namespaces can be made here; '' when they can."""
    missing = [tool for tool in ("unshare", "nsenter", "ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    script = "ip link add rail0 type veth peer name rail1 && unshare -n true"
    tried = subprocess.run(
        ["unshare", "-rn", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    return "" if tried.returncode == 0 else f"no network namespaces here: {tried.stderr.strip()}"


def test_two_rails_between_namespaces_share_and_survive_a_link() -> None:
    if reason := why_not():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="mp-") as folder:
        command = ["unshare", "-rn", sys.executable, "-m", "tests.transfer.namespaces", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["nics"] == ["slow0", "fast0"]
    for shares in (told["both"], told["fast is back"]):
        assert shares["slow"] > 0 and shares["fast"] > 0
        if told["shaped"]:
            assert shares["fast"] > shares["slow"]
    lone = told["fast went down"]
    assert lone["slow"] > 0 and sum(lone.values()) == sum(told["both"].values())
    assert told["slow went down under a write"]["fast"] > 0
