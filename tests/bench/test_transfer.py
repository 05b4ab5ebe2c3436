"""The transfer bench measures what it says and checks the bytes; nothing depends on speed."""

import pytest

from moonpool.bench import Settings, transfer, transfer_grid
from moonpool.bench.plain_socket import PlainSocket
from moonpool.bench.transfer import Case


def test_rows_are_checked_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    small = (
        Case("tcp", 2, 4096),
        Case("tcp", 2, 4096, depth=3),
        Case("shm", 1, 65_536, checksum=False),
    )
    monkeypatch.setattr(transfer, "CASES", small)
    monkeypatch.setattr(transfer, "MAPPED", (4096,))
    monkeypatch.setattr(transfer, "_CALLS_MAX", 3)
    monkeypatch.setattr(transfer_grid, "TRANSPORTS", ())
    rows = list(transfer.rows(Settings(rounds=1)))
    assert [row["case"] for row in rows] == [
        "tcp read 2 x 4 KiB",
        "tcp read 2 x 4 KiB, 3 in flight",
        "shm read 64 KiB, no CRC",
        "shm map 4 KiB",
    ]
    assert all(row["ok"] is True and row["subject"] == "moonpool" for row in rows)
    assert {"p50_us", "p99_us", "ops_per_s", "gb_per_s", "cpu_s_per_gb"} <= set(rows[0])


def test_a_round_moves_a_bounded_amount() -> None:
    for case in transfer.CASES + transfer.MORE_CASES:
        assert 16 <= case.calls and case.calls * case.nbytes <= 2 * (256 << 20), case.name


def test_reads_in_flight_go_to_rooms_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of the last `depth` reads are looked at, so one that overwrote another shows."""
    monkeypatch.setattr(transfer_grid, "TRANSPORTS", ())
    monkeypatch.setattr(transfer, "_CALLS_MAX", 3)
    seen: list[tuple[int, ...]] = []
    arrived = transfer._Transfer._arrived

    def looked_at(self: transfer._Transfer, read: transfer.Read, block_bytes: int) -> bool:
        seen.append(tuple(read.here.tolist()))
        return arrived(self, read, block_bytes)

    monkeypatch.setattr(transfer._Transfer, "_arrived", looked_at)
    monkeypatch.setattr(transfer, "CASES", (Case("tcp", 2, 4096, depth=3),))
    monkeypatch.setattr(transfer, "MAPPED", ())
    assert [row["ok"] for row in transfer.rows(Settings(rounds=1))] == [True]
    assert sorted(seen) == [(0, 1), (2, 3), (4, 5)]


def test_the_grid_has_a_limit_beside_each_case(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CASES", "MAPPED"):
        monkeypatch.setattr(transfer, name, ())
    monkeypatch.setattr(transfer_grid, "SHAPES", ((2, 4096), (1, 1 << 20)))
    monkeypatch.setattr(transfer_grid, "AREA_BYTES", 4 << 20)
    monkeypatch.setattr(transfer_grid, "_CALLS_MAX", 3)
    rows = list(transfer.rows(Settings(rounds=1)))
    names = [
        f"{transport}-{kind}-{shape}"
        for transport in ("local", "shm", "tcp", "file")
        for shape in ("2x4096", "1x1048576")
        for kind in ("read", "write")
    ]
    assert [row["case"] for row in rows] == [name for name in names for _ in range(2)]
    assert [row["subject"] for row in rows] == ["moonpool", "limit"] * len(names)
    assert all(row["ok"] is True for row in rows)


def test_the_grid_notices_bytes_that_did_not_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CASES", "MAPPED"):
        monkeypatch.setattr(transfer, name, ())
    monkeypatch.setattr(transfer_grid, "TRANSPORTS", ("tcp",))
    monkeypatch.setattr(transfer_grid, "SHAPES", ((1, 1 << 20),))
    monkeypatch.setattr(transfer_grid, "AREA_BYTES", 4 << 20)
    monkeypatch.setattr(transfer_grid, "_CALLS_MAX", 3)
    # The plain client that moves nothing.
    monkeypatch.setattr(PlainSocket, "move", lambda *_: None)
    rows = list(transfer.rows(Settings(rounds=1)))
    assert [row["ok"] for row in rows] == [True, False] * 2
