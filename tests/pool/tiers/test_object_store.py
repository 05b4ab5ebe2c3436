"""The remote tier on obstore's local-file and in-memory back ends."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
import pytest
from obstore.store import LocalStore, MemoryStore

from moonpool.core.errors import BadConfig
from moonpool.pool.tiers import object_store
from moonpool.pool.tiers.base import WHOLE, Status
from moonpool.pool.tiers.object_store import ObjectStore, open_remote
from tests.pool.tiers.disk_rig import as_killed, files_of_at_most, flip, made

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Remote

BACK_ENDS: dict[str, Callable[[Path], "Remote"]] = {
    "memory": lambda path: MemoryStore(),
    "file": lambda path: LocalStore(path / "remote", mkdir=True),
}


@pytest.fixture(params=BACK_ENDS)
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> "Remote":
    return BACK_ENDS[request.param](tmp_path)


def store_in(path: Path, remote: "Remote", limit: int = 1 << 20) -> ObjectStore:
    return ObjectStore(path, remote, "node", limit)


def put(store: ObjectStore, slot: int, size: int = 1000) -> bytes:
    entry, data = made(slot, size=size)
    assert store.write(entry, data) is Status.OK
    return data


def got(store: ObjectStore, slot: int) -> bytes | Status:
    answer = store.read(slot, 1, 0, WHOLE)
    return answer if isinstance(answer, Status) else bytes(answer)


def names(remote: "Remote") -> list[str]:
    return [one["path"] for page in obstore.list(remote) for one in page]


def test_what_was_written_is_read_and_outlives_a_kill(remote: "Remote", tmp_path: Path) -> None:
    store = store_in(tmp_path / "a", remote)
    data = [put(store, slot) for slot in range(5)]
    assert bytes(store.read(2, 1, 10, 20)) == data[2][10:30]
    assert store.read(2, 1, 990, 20) is Status.BOUNDS
    store.erase(3, 1)
    later = store_in(as_killed(tmp_path / "a", tmp_path / "b"), remote)
    assert [got(later, slot) for slot in (0, 1, 2, 4)] == data[:3] + data[4:]
    assert got(later, 3) is Status.MOVED
    store.close()
    later.close()


def test_erased_objects_are_deleted_there_behind_it(remote: "Remote", tmp_path: Path) -> None:
    store = store_in(tmp_path / "a", remote)
    for slot in range(4):
        put(store, slot)
    store.erase(0, 1)
    assert len(names(remote)) == 4
    put(store, 5)
    assert len(names(remote)) == 4
    store.erase(1, 1)
    later = store_in(as_killed(tmp_path / "a", tmp_path / "b"), remote)
    put(later, 6)  # what the earlier life did not get to
    assert len(names(remote)) == 4
    store.close()
    later.close()


def test_a_lost_index_leaves_nothing_of_the_objects(remote: "Remote", tmp_path: Path) -> None:
    store = store_in(tmp_path / "a", remote)
    put(store, 1)
    store.close()
    later = store_in(tmp_path / "b", remote)
    assert later.entries() == []
    put(later, 2)
    assert len(names(remote)) == 1
    later.close()


def test_a_flipped_bit_there_is_found(tmp_path: Path) -> None:
    store = store_in(tmp_path / "a", LocalStore(tmp_path / "remote", mkdir=True))
    put(store, 1)
    data = put(store, 2)
    (victim,) = (tmp_path / "remote").rglob("00000001-*")
    flip(victim, victim.stat().st_size - 10)
    assert got(store, 1) is Status.CORRUPT
    assert store.take_lost() == [(1, 1)]
    assert got(store, 1) is Status.MOVED
    assert got(store, 2) == data
    assert store.usage()["corrupt_objects"] == 1
    store.close()


def test_an_object_deleted_there_by_somebody_is_lost_and_said(
    remote: "Remote", tmp_path: Path
) -> None:
    store = store_in(tmp_path / "a", remote)
    put(store, 1)
    obstore.delete(remote, names(remote)[0])
    assert got(store, 1) is Status.CORRUPT
    assert store.take_lost() == [(1, 1)]
    store.close()


def test_the_limit_is_kept(remote: "Remote", tmp_path: Path) -> None:
    store = store_in(tmp_path / "a", remote, limit=3000)
    put(store, 1)
    put(store, 2)
    assert store.write(*made(3)) is Status.NO_SPACE
    store.erase(1, 1)
    put(store, 3)
    store.close()


def test_a_back_end_that_is_away_costs_its_own_calls(tmp_path: Path) -> None:
    store = store_in(tmp_path / "a", LocalStore(tmp_path / "remote", mkdir=True))
    data = put(store, 1)
    (tmp_path / "remote").rename(tmp_path / "away")
    (tmp_path / "remote").write_text("no folder")
    assert store.write(*made(2)) is Status.UNREACHABLE
    assert got(store, 1) in (Status.UNREACHABLE, Status.CORRUPT)
    (tmp_path / "remote").unlink()
    (tmp_path / "away").rename(tmp_path / "remote")
    assert got(store, 1) in (data, Status.MOVED)
    put(store, 3)
    store.close()


def test_an_earlier_life_is_swept_though_the_back_end_was_away_at_first(tmp_path: Path) -> None:
    remote = LocalStore(tmp_path / "remote", mkdir=True)
    store = store_in(tmp_path / "a", remote)
    put(store, 1)
    store.close()
    later = store_in(tmp_path / "b", remote)
    (tmp_path / "remote").rename(tmp_path / "away")
    (tmp_path / "remote").write_text("no folder")
    assert later.write(*made(2)) is Status.UNREACHABLE
    (tmp_path / "remote").unlink()
    (tmp_path / "away").rename(tmp_path / "remote")
    put(later, 3)
    assert len(names(remote)) == 1
    later.close()


def test_a_removal_that_cannot_be_kept_costs_the_index_not_the_promise(
    remote: "Remote", tmp_path: Path
) -> None:
    store = store_in(tmp_path / "a", remote)
    put(store, 1)
    put(store, 2)
    with files_of_at_most(1):
        assert store.erase(1, 1) is Status.OK
    later = store_in(as_killed(tmp_path / "a", tmp_path / "b"), remote)
    assert later.entries() == []
    store.close()
    later.close()


def test_urls(tmp_path: Path) -> None:
    assert isinstance(open_remote(f"file://{tmp_path}/x"), LocalStore)
    assert isinstance(open_remote("memory:///"), MemoryStore)
    with pytest.raises(BadConfig, match="nonsense"):
        open_remote("nonsense://x")


def test_a_put_waits_for_one_request_of_deletions_not_for_all(
    remote: "Remote", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "DELETE_MAX", 4)
    asked: list[int] = []
    delete = object_store._delete

    def counted(where: "Remote", some: list[str]) -> None:
        asked.append(len(some))
        delete(where, some)

    monkeypatch.setattr(object_store, "_delete", counted)
    store = store_in(tmp_path / "a", remote)
    for slot in range(10):
        put(store, slot)
    for slot in range(10):
        store.erase(slot, 1)
    put(store, 20)
    assert asked == [4]
    assert store.usage()["garbage"] == 6
    assert len(names(remote)) == 7
    for slot in range(21, 24):
        put(store, slot)
    assert asked == [4, 4, 2]
    assert len(names(remote)) == 4
    store.close()


def test_names_that_are_gone_already_keep_no_others(remote: "Remote", tmp_path: Path) -> None:
    store = store_in(tmp_path / "a", remote)
    for slot in range(4):
        put(store, slot)
    obstore.delete(remote, names(remote)[0])
    for slot in range(4):
        store.erase(slot, 1)
    put(store, 9)
    assert len(names(remote)) == 1
    assert store.usage()["garbage"] == 0
    store.close()
