"""Every bench of the pool runs and checks its bytes; here with few objects and one round."""

import pytest

from moonpool.bench import (
    Row,
    Settings,
    catalog,
    exists,
    failover,
    memory,
    pressure,
    restart,
    store,
)
from moonpool.bench.processes import pool_of_processes

ONCE = Settings(rounds=1)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "WORKING_SET_BYTES", 1 << 20)
    monkeypatch.setattr(catalog, "BATCHES", 4)
    for bench in (exists, failover, memory, restart):
        monkeypatch.setattr(bench, "OBJECTS", 20_000)
    small = {"ASKED": 1000, "ASKED_ABSENT": 100, "ASK_MEMORY": 16 << 20, "ASK_S": 0.2}
    small |= {"EVICT_OBJECTS": 8192, "EVICT_BATCHES": 4, "FULL_MEMORY": 64 << 20, "CALLS_S": 0.02}
    for name, value in (small | {"SEGMENTS": 3, "SEGMENT_MEMORY": 16 << 20}).items():
        monkeypatch.setattr(pressure, name, value)
    monkeypatch.setattr(restart, "SNAPSHOT_S", 0.5)


def check(rows: list[Row], bench: str) -> None:
    assert {row["bench"] for row in rows} == {bench}
    assert {row["subject"] for row in rows} == {"moonpool"}
    assert all(row.get("ok", True) for row in rows)


def test_catalog() -> None:
    rows = list(catalog.rows(ONCE))
    check(rows, "catalog")
    assert len(rows) == 2


@pytest.mark.faults
def test_store() -> None:
    rows = list(store.rows(ONCE))
    check(rows, "store")
    assert all(row["ok"] for row in rows)
    assert len({row["case"] for row in rows}) == 8


@pytest.mark.faults
def test_pressure() -> None:
    rows = list(pressure.rows(ONCE))
    check(rows, "pressure")
    assert all(row["ok"] is True for row in rows)
    assert len({row["case"] for row in rows}) == 6


@pytest.mark.faults
def test_exists() -> None:
    rows = list(exists.rows(ONCE))
    check(rows, "exists")
    assert len(rows) == 2


@pytest.mark.faults
def test_memory() -> None:
    (row,) = memory.rows(ONCE)
    check([row], "memory")
    assert row["objects"] == 20_000


@pytest.mark.faults
def test_failover() -> None:
    (row,) = failover.rows(ONCE)
    check([row], "failover")
    assert row["objects"] == 20_000


@pytest.mark.faults
def test_restart() -> None:
    rows = list(restart.rows(ONCE))
    check(rows, "restart")
    assert [int(str(row["restored"])) > 0 for row in rows] == [False, True]
    assert all(row["ok"] for row in rows)


def test_the_pool_of_a_bench_need_not_wait_for_other_nodes() -> None:
    with pool_of_processes(1 << 20, headroom=1 << 20) as (_, pool):
        assert pool.put("k", b"1", timeout_s=2.5).ok  # the grace is longer
