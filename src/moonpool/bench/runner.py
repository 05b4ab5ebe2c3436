"""What every bench shares: the registry, rows, medians over rounds, CPU time, the machine.

A bench is a module with `rows(settings) -> Iterator[Row]`. A row is one JSON object: `bench, case,
subject, version, rounds`, then what applies of `p50_us, p99_us, gb_per_s, ops_per_s,
cpu_s_per_gb, bytes_per_item`, figures of its own, and `ok` true where every byte was checked.
"""

from __future__ import annotations

import importlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

import moonpool
from moonpool.core.errors import BadInput, did_you_mean
from moonpool.pool.cluster import cpu_seconds

Row = dict[str, object]
Figures = dict[str, float]
Laps = np.ndarray[tuple[int], np.dtype[np.int64]]

BENCHES: Final = {
    "store": "moonpool.bench.store",
    "transfer": "moonpool.bench.transfer",
    "catalog": "moonpool.bench.catalog",
    "restart": "moonpool.bench.restart",
    "failover": "moonpool.bench.failover",
    "exists": "moonpool.bench.exists",
    "pressure": "moonpool.bench.pressure",
    "memory": "moonpool.bench.memory",
    "scale": "moonpool.bench.scale",
    "radix": "moonpool.bench.radix",
    "proxy": "moonpool.bench.proxy",
    "router": "moonpool.bench.router",
    "policies": "moonpool.bench.policies",
    "sparse": "moonpool.bench.sparse",
    "sparse-model": "moonpool.bench.sparse_model",
}


LAYERS_OF_ALL: Final = 8


class Settings(NamedTuple):
    """How much to measure: `full` runs the whole matrix, a plain run ends within minutes."""

    rounds: int = 5
    full: bool = False
    trace: str = ""
    """For the router: only this trace (packaged name or file), over `workers` of `blocks` each."""
    workers: int = 8
    blocks: int = 5859
    tokens: int = 0
    """For sparse: only prefixes of so many tokens, and at most so many `layers`; 0: as usual."""
    layers: int = 0
    measured: str = ""
    """For sparse-model: a file of rows of the sparse bench; `tokens` of them calibrate."""


def rows_of(what: str, settings: Settings) -> Iterator[Row]:
    """The rows of one bench or of "all", the machine's first. Raises BadInput."""
    if what != "all" and what not in BENCHES:
        raise BadInput(
            f"unknown bench {what!r}; know {', '.join(BENCHES)} and all."
            f"{did_you_mean(what, [*BENCHES, 'all'])}"
        )
    yield machine_row()
    settings = settings_for(what, settings)
    for name in BENCHES if what == "all" else [what]:
        yield from importlib.import_module(BENCHES[name]).rows(settings)


def settings_for(what: str, settings: Settings) -> Settings:
    """Everything in one plain run is to end within minutes: with all 61 layers sparse alone moves
    hundreds of gigabytes. Its rows say how many layers they are of."""
    if what != "all" or settings.full or settings.layers:
        return settings
    return settings._replace(layers=LAYERS_OF_ALL)


def make_row(
    bench: str,
    case: str,
    rounds: int,
    figures: Mapping[str, object],
    *,
    subject: str = "moonpool",
    version: str = moonpool.__version__,
) -> Row:
    """One row; floats are rounded to what was measured, four significant digits."""
    short = {key: _short(value) for key, value in figures.items()}
    return {
        "bench": bench,
        "case": case,
        "subject": subject,
        "version": version,
        "rounds": rounds,
        **short,
    }


class CpuMeter:
    """CPU seconds, user and system, of this process and of others while they live."""

    def __init__(self, pids: Iterable[int] = ()) -> None:
        self._pids = tuple(pids)
        self._start = self._now()

    def seconds(self) -> float:
        """Spent since construction."""
        return self._now() - self._start

    def _now(self) -> float:
        return time.process_time() + sum(cpu_seconds(pid) for pid in self._pids)


def measure(
    call: Callable[[], object],
    rounds: int,
    calls: int,
    *,
    bytes_per_call: int = 0,
    items_per_call: int = 1,
    pids: Sequence[int] = (),
) -> Row:
    """Time `calls` calls a round, one round first to warm up; medians over the rounds.

    Returns p50_us, p99_us and ops_per_s (items), with `bytes_per_call` also gb_per_s (decimal) and
    cpu_s_per_gb of this process and `pids`.
    """
    found = []
    for number in range(rounds + 1):
        meter = CpuMeter(pids)
        lap_ns = _laps(call, calls)
        cpu_s = meter.seconds()
        if number > 0:
            found.append(figures_of(lap_ns, items_per_call, bytes_per_call, cpu_s))
    return medians(found)


def figures_of(
    lap_ns: Laps, items_per_call: int, bytes_per_call: int = 0, cpu_s: float = 0.0
) -> Figures:
    """Of one round, what `measure` returns; `cpu_s` as a CpuMeter says it."""
    total_s = float(lap_ns.sum()) / 1e9
    p50, p99 = (np.percentile(lap_ns, [50, 99]) / 1e3).tolist()
    ops_per_s = lap_ns.size * items_per_call / total_s
    figures = {"p50_us": p50, "p99_us": p99, "ops_per_s": ops_per_s}
    if bytes_per_call:
        moved_gb = lap_ns.size * bytes_per_call / 1e9
        figures |= {"gb_per_s": moved_gb / total_s, "cpu_s_per_gb": cpu_s / moved_gb}
    return figures


def medians(rounds: Sequence[Figures]) -> Row:
    """Of each figure, over the rounds (at least one, all with the same figures)."""
    return {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}


def machine_row() -> Row:
    """The machine, so that a figure is never without one."""
    return make_row(
        "machine",
        _cpu_model(),
        0,
        {
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        subject="machine",
        version=platform.release(),
    )


def _laps(call: Callable[[], object], calls: int) -> Laps:
    clock = time.perf_counter_ns
    laps = np.empty(calls, np.int64)
    for index in range(calls):
        start = clock()
        call()
        laps[index] = clock() - start
    return laps


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _short(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value
