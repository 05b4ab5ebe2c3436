"""`python -m tests.coverage_gate`: the pure rooms are covered, line and branch, by their own tests.

Rooms, tests and the threshold stand in [tool.moonpool.coverage] of pyproject.toml. Exit status 0
when each room reaches it, 1 when one does not.
"""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from tests.tree import ROOT


class Covered(NamedTuple):
    """Of one file or of all together."""

    name: str
    lines: int
    lines_covered: int
    branches: int
    branches_covered: int

    @property
    def line_percent(self) -> float:
        return 100 * self.lines_covered / self.lines if self.lines else 100.0

    @property
    def branch_percent(self) -> float:
        return 100 * self.branches_covered / self.branches if self.branches else 100.0


def covered_of(name: str, summary: dict[str, Any]) -> Covered:
    """From one 'summary' of coverage's JSON report."""
    return Covered(
        name,
        summary["num_statements"],
        summary["covered_lines"],
        summary["num_branches"],
        summary["covered_branches"],
    )


def files_of(patterns: list[str], root: Path = ROOT) -> list[str]:
    """The files that `patterns` name, relative to `root`, but for those that one after a "!" names.
    A pattern that names none is an error."""
    found: list[str] = []
    for pattern in patterns:
        matches = sorted(str(path.relative_to(root)) for path in root.glob(pattern.lstrip("!")))
        if not matches:
            raise SystemExit(f"coverage gate: {pattern} matches no file; see pyproject.toml")
        if pattern.startswith("!"):
            found = [name for name in found if name not in matches]
        else:
            found += matches
    return found


def measure(files: list[str], tests: list[str]) -> list[Covered]:
    """Runs `tests` under coverage; one entry per file, then their total."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "COVERAGE_FILE": f"{folder}/data"}
        only = f"--include={','.join(files)}"
        run = ["run", "--branch", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        subprocess.run([sys.executable, "-m", "coverage", *run], cwd=ROOT, env=env, check=True)
        report = ["json", "-q", only, "-o", f"{folder}/report.json"]
        subprocess.run([sys.executable, "-m", "coverage", *report], cwd=ROOT, env=env, check=True)
        data = json.loads(Path(folder, "report.json").read_text(encoding="utf-8"))
    each = [covered_of(name, file["summary"]) for name, file in sorted(data["files"].items())]
    return [*each, covered_of("total", data["totals"])]


def main() -> int:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    gate = settings["moonpool"]["coverage"]
    try:
        rows = measure(files_of(gate["files"]), gate["tests"])
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    for row in rows:
        print(
            f"{row.name:<50} lines {row.line_percent:5.1f} %  branches {row.branch_percent:5.1f} %"
        )
    least = min(rows[-1].line_percent, rows[-1].branch_percent)
    if least < gate["percent_min"]:
        print(f"coverage gate: {least:.1f} % is below {gate['percent_min']} %", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
