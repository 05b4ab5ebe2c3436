"""The bench runner: rows, medians and the registry. Nothing here depends on speed."""

import json
import os

import pytest

from moonpool.bench import BENCHES, Settings, rows_of
from moonpool.bench.runner import (
    LAYERS_OF_ALL,
    CpuMeter,
    machine_row,
    make_row,
    measure,
    settings_for,
)
from moonpool.core.errors import BadInput


def test_a_row_starts_with_its_names_and_is_json() -> None:
    row = make_row("store", "get_into 64 KiB", 5, {"p50_us": 1.23456, "ok": True})
    assert list(row)[:5] == ["bench", "case", "subject", "version", "rounds"]
    assert row["subject"] == "moonpool"
    assert json.loads(json.dumps(row))["p50_us"] == 1.235


def test_measure_makes_a_warm_up_round_and_counts_items_and_bytes() -> None:
    calls = []
    figures = measure(lambda: calls.append(1), 3, 10, bytes_per_call=100, items_per_call=4)
    assert len(calls) == 40
    assert set(figures) == {"p50_us", "p99_us", "ops_per_s", "gb_per_s", "cpu_s_per_gb"}
    assert figures["gb_per_s"] == pytest.approx(float(str(figures["ops_per_s"])) * 25 / 1e9)


def test_the_meter_counts_this_process_and_others() -> None:
    meter = CpuMeter([os.getpid()])
    sum(range(300_000))
    assert meter.seconds() > 0


def test_the_machine_is_named() -> None:
    row = machine_row()
    assert row["subject"] == "machine"
    assert row["cores"] == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("what", "settings", "layers"),
    [
        ("all", Settings(), LAYERS_OF_ALL),
        ("all", Settings(full=True), 0),
        ("all", Settings(layers=20), 20),
        ("sparse", Settings(), 0),
    ],
)
def test_everything_in_one_plain_run_takes_fewer_layers(
    what: str, settings: Settings, layers: int
) -> None:
    """0: as many as the bench itself takes."""
    assert settings_for(what, settings) == settings._replace(layers=layers)


def test_an_unknown_bench_suggests_the_known_one() -> None:
    with pytest.raises(BadInput, match="Did you mean 'store'?"):
        next(rows_of("stor", Settings()))
    assert "all" not in BENCHES
