"""The disk tier's limit over kills and restarts, and with others' files in its folder."""

from __future__ import annotations

from pathlib import Path

from moonpool.pool.tiers.base import Status
from tests.pool.tiers.disk_rig import LIMIT, as_killed, got, made, opened


def held_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def test_the_limit_holds_over_kills_and_counts_what_others_put_there(tmp_path: Path) -> None:
    """R59: written four times over, killed, written again, a stranger's file in the folder."""
    folder = tmp_path / "a"
    foreign = LIMIT // 2
    kept: dict[int, tuple[int, bytes]] = {}  # by slot: generation and bytes, the oldest first
    for life in range(1, 4):
        log = opened(folder)
        if life == 3:
            (folder / "core.1234").write_bytes(bytes(foreign))
        for slot in range(4 * LIMIT // 50_000):
            entry, data = made(slot, generation=life, size=50_000)
            if slot in kept:
                log.erase(slot, kept.pop(slot)[0])
            while (status := log.write(entry, data)) is Status.NO_SPACE and kept:
                oldest = next(iter(kept))
                log.erase(oldest, kept.pop(oldest)[0])
            if status is Status.OK:
                kept[slot] = life, data
            if life < 3 or slot >= LIMIT // 50_000:  # it is noticed with the next bucket
                assert held_bytes(folder) <= LIMIT, (life, slot)
        assert len(kept) > 10
        assert all(got(log, slot, generation) == data for slot, (generation, data) in kept.items())
        assert log.usage()["foreign_bytes"] == (foreign if life == 3 else 0)
        folder = as_killed(folder, tmp_path / f"life{life}")
        log.close()
