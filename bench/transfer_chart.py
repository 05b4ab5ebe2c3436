"""Reads of another process's memory, who does them how fast: a table and a picture of a run's rows.

    python -m bench.transfer_chart ROWS.jsonl [--picture docs/images/transfer.png]

The table is Markdown on stdout. Rows are those that bench.compare keeps; the picture needs
matplotlib.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.report import markdown, number
from bench.rows import Name, Row, merged, name_of


class Subject(NamedTuple):
    """Who moves the bytes; `case` makes its row's name of blocks and bytes a block."""

    label: str
    subject: str
    prefix: str
    colour: str

    def case(self, blocks: int, size: int) -> str:
        if self.subject in ("moonpool", "limit"):
            return f"{self.prefix}-read-{blocks}x{size}"
        big = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
        return f"{self.prefix} read {blocks} x {big}" if blocks > 1 else f"{self.prefix} read {big}"


SUBJECTS: Final = (
    Subject("one memcpy", "limit", "shm", "#222222"),
    Subject("Moonpool, shm", "moonpool", "shm", "#0b4f8a"),
    Subject("Moonpool, nixl", "moonpool", "nixl", "#3f8fd2"),
    Subject("NIXL alone, cma", "nixl", "cma", "#7ab800"),
    Subject("one plain socket", "limit", "tcp", "#6b6b6b"),
    Subject("Moonpool, tcp", "moonpool", "tcp", "#c8641e"),
    Subject("Mooncake, tcp", "mooncake", "tcp", "#e8a33d"),
    Subject("NIXL alone, UCX's tcp", "nixl", "ucx-tcp", "#c9c9c9"),
)
SHAPES: Final = ((1, 4 << 10), (32, 4 << 10), (1, 64 << 10), (1, 1 << 20))
NAMES: Final = ("4 KiB", "32 x 4 KiB", "64 KiB", "1 MiB")
FIGURES: Final = (("gb_per_s", "GB/s"), ("cpu_s_per_gb", "CPU s/GB, both processes"))

Rows = Mapping[Name, Row]


def figure_of(rows: Rows, subject: Subject, shape: tuple[int, int], figure: str) -> float | None:
    """One figure; None where it was not measured, or a byte was wrong."""
    row = rows.get((subject.subject, "transfer", subject.case(*shape)), {})
    value = row.get(figure)
    good = isinstance(value, int | float) and row.get("ok") is not False
    return float(value) if good and isinstance(value, int | float) else None


def table(rows: Rows) -> str:
    """p50 in us, GB/s and CPU s/GB of each subject and shape."""
    lines = []
    for subject in SUBJECTS:
        cells = [subject.label]
        for shape in SHAPES:
            figures = [figure_of(rows, subject, shape, name) for name in ("p50_us", *_KEYS)]
            cells.append(" / ".join("-" if one is None else number(one) for one in figures))
        lines.append(cells)
    return markdown(("us at the median / GB/s / CPU s/GB", *NAMES), lines)


_KEYS: Final = tuple(key for key, _ in FIGURES)


def draw(rows: Rows, path: Path) -> None:
    """Grouped bars, one panel a figure, on logarithmic scales."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), layout="constrained")
    FigureCanvasAgg(figure)
    panels: Sequence[Any] = figure.subplots(len(FIGURES), 1)
    width = 0.8 / len(SUBJECTS)
    for axes, (key, label) in zip(panels, FIGURES, strict=True):
        for place, subject in enumerate(SUBJECTS):
            values = [figure_of(rows, subject, shape, key) for shape in SHAPES]
            at = [index + (place - (len(SUBJECTS) - 1) / 2) * width for index in range(len(SHAPES))]
            heights = [value or float("nan") for value in values]
            axes.bar(at, heights, width, color=subject.colour, label=subject.label)
        axes.set_yscale("log")
        axes.set_ylabel(label)
        axes.set_xticks(range(len(SHAPES)), NAMES)
        axes.grid(axis="y", alpha=0.3)
    panels[0].set_title("Reads of another process's memory on one host")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", type=Path, nargs="+", help="JSON lines of one or more runs")
    parser.add_argument("--picture", type=Path, help="where the picture goes")
    args = parser.parse_args()
    lines = [line for path in args.rows for line in path.read_text(encoding="utf-8").splitlines()]
    rows = {name_of(row): row for row in merged(json.loads(line) for line in lines)}
    print(table(rows))
    if args.picture:
        draw(rows, args.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
