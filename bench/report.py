"""The table of a comparison, as text that is Markdown too."""

from collections.abc import Sequence
from typing import Final

from bench.targets import Verdict, against, reach

HEAD: Final = ("work", "figure", "ours", "theirs", "of", "ratio", "target", "reached")
UNITS: Final = {
    "p50_us": "p50, us",
    "gb_per_s": "GB/s",
    "ops_per_s": "items/s",
    "cpu_s_per_gb": "CPU s/GB",
    "seconds": "s",
    "bytes_per_item": "bytes",
}
_WORDS: Final = {True: "yes", False: "**no**", None: "-"}


def table(verdicts: Sequence[Verdict]) -> str:
    """One line a verdict; "-" where there is no such thing, "?" where it was not measured."""
    return markdown(HEAD, [_cells(verdict) for verdict in verdicts])


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Cells in columns of one width each."""
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    rule = ["-" * width for width in widths]
    padded = [
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        for line in (head, rule, *lines)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def number(value: float | None) -> str:
    """Three significant digits, thousands apart."""
    if value is None:
        return "?"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cells(verdict: Verdict) -> list[str]:
    target = verdict.target
    rival = target.theirs is not None
    missing = verdict.value is None and bool(reach(target))
    return [
        target.work,
        UNITS.get(target.figure, target.figure),
        number(verdict.ours),
        number(verdict.theirs) if rival else "-",
        against(verdict) or "-",
        number(verdict.value) if rival else "-",
        reach(target) or "-",
        "?" if missing else _WORDS[verdict.reached],
    ]
