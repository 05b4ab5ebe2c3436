"""Pictures of docs/sparse.md, drawn from rows of the benches and from nothing else.

    moonpool bench sparse --full --json > rows.jsonl
    moonpool bench sparse-model --from rows.jsonl --json > model.jsonl
    python -m bench.sparse_charts rows.jsonl model.jsonl --into docs/images

Draws sparse-first-step-*.png, sparse-buffer.png and, where rows of the model are among them,
sparse-model.png, whose title says that it is simulated. Needs the `plot` extra.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from moonpool.cli.replay.plot import require_matplotlib

SIZES: Final = (656, 1152)
TRANSPORTS: Final = ("shm", "tcp")
COLORS: Final = ("#1f4e79", "#c55a11", "#548235", "#7f6000")
FIRST_STEPS: Final = {
    "resident": "index keys in place",
    "fetched": "keys fetched, too",
    "pipelined": "keys beside",
}
_PARTS: Final = 4


class Point(NamedTuple):
    """One case of the sparse bench: `131072-656-shm-resident` and its figures."""

    tokens: int
    row_bytes: int
    transport: str
    kind: str
    row: Mapping[str, Any]
    of: str = ""
    """What the case is about, of its kind: `smollm2-quest` of `...-hint-smollm2-quest`."""


class Bars(NamedTuple):
    """Bars side by side over `places`; one label and its heights a series."""

    places: list[str]
    series: dict[str, list[float]]


def points(rows: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Rows of the sparse bench that name tokens, row size and transport."""
    found = []
    for row in rows:
        parts = str(row.get("case", "")).split("-")
        if row.get("bench") == "sparse" and len(parts) >= _PARTS:
            own = "-".join(parts[_PARTS:])
            found.append(Point(int(parts[0]), int(parts[1]), parts[2], parts[3], row, own))
    return found


def first_steps(found: Sequence[Point], kind: str) -> Bars:
    """How many times sooner the first step's rows are here than the whole prefix."""
    lengths = sorted({point.tokens for point in found})
    series = {}
    for transport in TRANSPORTS:
        for size in SIZES:
            heights = [
                _figure(found, tokens, size, transport, kind, "first_step_ratio")
                for tokens in lengths
            ]
            if any(heights):
                series[f"{transport}, {size} B"] = heights
    return Bars([f"{tokens // 1024}K" for tokens in lengths], series)


def buffers(found: Sequence[Point]) -> Bars:
    """A layer of a steady step by size of the buffer, in microseconds, beside none. By layer, since
    not as many layers of each size fit."""
    longest = max(point.tokens for point in found)
    steady = [p for p in found if p.kind == "steady" and p.tokens == longest]
    sizes = sorted({int(point.row["buffer_rows"]) for point in steady})
    series = {}
    for transport in TRANSPORTS:
        for size in SIZES:
            heights = [_layer_us(found, longest, size, transport, "resident")]
            for rows in sizes:
                own = [p for p in steady if p.row["buffer_rows"] == rows]
                heights.append(_layer_us(own, longest, size, transport, "steady"))
            if any(heights):
                series[f"{transport}, {size} B"] = heights
    return Bars(["none", *map(str, sizes)], series)


def what_ifs(rows: Iterable[Mapping[str, Any]]) -> Bars:
    """Ratios of the model's what-ifs."""
    prefix = "what-if-"
    own = [row for row in rows if str(row.get("case", "")).startswith(prefix)]
    names = ("throughput_ratio", "ttft_ratio", "tbt_ratio")
    places = [str(row["case"])[len(prefix) :] for row in own]
    return Bars(
        places, {name.partition("_")[0]: [float(row[name]) for row in own] for name in names}
    )


def draw(bars: Bars, title: str, unit: str, path: Path) -> None:
    """Writes a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    width = 0.8 / max(1, len(bars.series))
    for number, (label, heights) in enumerate(bars.series.items()):
        at = [place + (number + 0.5) * width - 0.4 for place in range(len(heights))]
        drawn = axes.bar(at, heights, width * 0.92, label=label, color=COLORS[number % len(COLORS)])
        axes.bar_label(drawn, fmt="%.3g", fontsize=7, padding=1)
    axes.set_xticks(range(len(bars.places)), bars.places)
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_ylabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.sparse_charts")
    parser.add_argument("rows", type=Path, nargs="+", help="what the benches printed")
    parser.add_argument("--into", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    require_matplotlib()
    rows = [
        json.loads(line)
        for path in arguments.rows
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("{")
    ]
    arguments.into.mkdir(parents=True, exist_ok=True)
    for name in write_all(rows, arguments.into):
        print(name)


def write_all(rows: Sequence[Mapping[str, Any]], into: Path) -> list[Path]:
    """The pictures that the rows are enough for."""
    found, written = points(rows), []
    if any(point.kind == "resident" for point in found):
        for kind, keys in FIRST_STEPS.items():
            if not any(point.kind == kind for point in found):
                continue
            path = into / f"sparse-first-step-{kind}.png"
            title = f"First step: whole prefix over rows on demand, {keys} (times as long)"
            draw(first_steps(found, kind), title, "ratio", path)
            written.append(path)
    if any(point.kind == "steady" for point in found):
        path = into / "sparse-buffer.png"
        draw(
            buffers(found),
            "A layer's rows of one step, by rows in the hot buffer",
            "us a layer",
            path,
        )
        written.append(path)
    bars = what_ifs(rows)
    if bars.places:
        path = into / "sparse-model.png"
        title = "SIMULATED: CXL on demand over RDMA whole, 128K, 64 clients"
        draw(bars, title, "ratio", path)
        written.append(path)
    return written


def _layer_us(found: Sequence[Point], tokens: int, size: int, transport: str, kind: str) -> float:
    layers = _figure(found, tokens, size, transport, kind, "layers")
    step_s = _figure(found, tokens, size, transport, kind, "step_s")
    return step_s / layers * 1e6 if layers else 0.0


def _figure(
    found: Sequence[Point], tokens: int, size: int, transport: str, kind: str, name: str
) -> float:
    """0 where there is no such row."""
    for point in found:
        if (point.tokens, point.row_bytes, point.transport, point.kind) == (
            tokens,
            size,
            transport,
            kind,
        ):
            return float(point.row[name])
    return 0.0


if __name__ == "__main__":
    main()
