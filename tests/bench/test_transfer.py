"""The transfer bench measures what it says and checks the bytes; nothing depends on speed."""

import pytest

from moonpool.bench import Settings, transfer
from moonpool.bench.transfer import Case


def test_rows_are_checked_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    small = (Case("tcp", 2, 4096), Case("shm", 1, 65_536, checksum=False))
    monkeypatch.setattr(transfer, "CASES", small)
    monkeypatch.setattr(transfer, "MAPPED", (4096,))
    monkeypatch.setattr(transfer, "_CALLS_MAX", 3)
    rows = list(transfer.rows(Settings(rounds=1)))
    assert [row["case"] for row in rows] == [
        "tcp read 2 x 4 KiB",
        "shm read 64 KiB, no CRC",
        "shm map 4 KiB",
    ]
    assert all(row["ok"] is True and row["subject"] == "moonpool" for row in rows)
    assert {"p50_us", "p99_us", "ops_per_s", "gb_per_s", "cpu_s_per_gb"} <= set(rows[0])


def test_a_round_moves_a_bounded_amount() -> None:
    for case in transfer.CASES + transfer.MORE_CASES:
        assert 16 <= case.calls and case.calls * case.nbytes <= 2 * (256 << 20), case.name
