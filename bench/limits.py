"""The machine's limits as JSON lines: copies, copies with CRC-32C, the plain one-frame TCP read.

    python bench/limits.py [--rounds N]

Compiles limits.cpp with the core's own CRC into build/bench (a C++20 compiler is all it needs) and
runs it: about fifteen seconds. `cpu_s_per_gb` counts all processes of a case; figures are medians
over rounds. A hot case works on one buffer, a cold one walks through 256 MiB.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "build" / "bench" / "limits"


def sources() -> list[Path]:
    native = ROOT / "native"
    return [ROOT / "bench" / "limits.cpp", native / "copy.cpp", *sorted(native.glob("crc*.cpp"))]


def build() -> Path:
    """The program, compiled again when a source or header is newer."""
    headers = [*(ROOT / "bench").glob("*.hpp"), *(ROOT / "native").glob("*.hpp")]
    newest = max(path.stat().st_mtime for path in [*sources(), *headers])
    if PROGRAM.exists() and PROGRAM.stat().st_mtime > newest:
        return PROGRAM
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise SystemExit("limits: needs a C++20 compiler; install g++ or set CXX")
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    fresh = PROGRAM.with_suffix(f".{os.getpid()}")
    includes = [f"-I{ROOT / 'native'}", f"-I{ROOT / 'bench'}"]
    subprocess.run(
        [compiler, "-O3", "-std=c++20", *includes, *map(str, sources()), "-o", str(fresh)],
        check=True,
    )
    fresh.replace(PROGRAM)
    return PROGRAM


def rows(rounds: int) -> Iterator[dict[str, object]]:
    """One row a case, as it is measured; `version` is the kernel's, whose TCP it is."""
    command = [str(build()), str(rounds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            row: dict[str, object] = json.loads(line)
            yield {**row, "version": platform.release()}
    if process.returncode != 0:
        raise SystemExit(f"limits: {command[0]} ended with status {process.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="rounds a case (default 5)")
    for row in rows(parser.parse_args().rounds):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
