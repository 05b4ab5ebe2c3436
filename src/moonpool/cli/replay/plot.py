"""The picture of a replay: hit ratio and throughput over the trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moonpool.core.errors import missing_extra
from moonpool.planner.replay import Window


def require_matplotlib() -> None:
    """Raises MissingExtra; called before the work, so that nobody waits for a picture in vain."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise missing_extra("--plot", "plot") from None


def draw(windows: Sequence[Window], title: str, path: Path) -> None:
    """Write a PNG (or what the suffix says) of `windows` to `path`."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    hits, speed = figure.subplots(2, 1, sharex=True)
    ends = [window.end for window in windows]
    hits.plot(ends, [w.token_hit_ratio for w in windows], color="0.7", label="these requests")
    hits.plot(ends, [w.token_hit_ratio_so_far for w in windows], color="C0", label="so far")
    hits.set_ylabel("token hit ratio")
    hits.set_ylim(0, 1)
    hits.set_title(title)
    hits.legend(loc="upper left")
    speed.plot(ends, [window.gb_per_s for window in windows], color="C1")
    speed.set_ylabel("read and written, GB/s")
    speed.set_ylim(bottom=0)
    speed.set_xlabel("requests")
    for axes in (hits, speed):
        axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
