"""The demo's picture: time to the first token by where the prompt's keys and values were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moonpool.cli.demo.story import COLD, LOCAL, POOL, Row
from moonpool.cli.replay.plot import require_matplotlib

_BARS = ((COLD, "computed"), (POOL, "from the pool"), (LOCAL, "in its own pages"))


def draw(rows: Sequence[Row], summary: Mapping[str, Any], path: Path) -> None:
    """Write a PNG (or what the suffix says): medians as bars, single answers as dots."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, (how, label) in enumerate(_BARS):
        median = summary[f"{how}_ttft_ms"]
        times = [row.answer.ttft_ms for row in rows if row.how == how]
        axes.barh(place, median, color=f"C{place}", label=label)
        axes.plot(times, [place] * len(times), "o", color="0.2", markersize=3)
        axes.annotate(f" {median:,.0f} ms", (max(times), place), va="center")
    ratio = summary.get("reference_ratio")
    if ratio is not None:
        axes.axvline(
            summary["cold_ttft_ms"] / ratio,
            color="0.4",
            linestyle="--",
            label="transformers, computed",
        )
    axes.set_yticks(range(len(_BARS)), [label for _, label in _BARS])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("time to the first token, ms")
    axes.set_title(f"A question about a document of {summary['pool_tokens']:,} tokens")
    if ratio is not None:
        axes.legend(handles=axes.lines[-1:], loc="lower right")
    axes.grid(axis="x", alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
