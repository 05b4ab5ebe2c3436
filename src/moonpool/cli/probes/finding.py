"""One line of the doctor's report."""

from enum import StrEnum
from pathlib import Path
from typing import NamedTuple


class State(StrEnum):
    """OK: as it should be. LIMITED: works, slower or smaller than it could. ABSENT: optional and
    not there. FAILED: Moonpool does not run until this is put right (exit status 1)."""

    OK = "ok"
    LIMITED = "limited"
    ABSENT = "absent"
    FAILED = "failed"


class Finding(NamedTuple):
    """`what` is short and stable, `detail` what was seen, `advice` what to do ('' nothing)."""

    what: str
    state: State
    detail: str
    advice: str = ""


def read_text(path: Path) -> str | None:
    """The stripped text of a file of /proc or /sys, None when it is not there or not ours."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
