from pathlib import Path

import msgspec
import numpy as np
import pytest

from moonpool.pool.tiers.agent import TOMBSTONES_MAX, TierAgent
from moonpool.pool.tiers.base import Entry, Status
from tests.pool.tiers.disk_rig import as_killed, flip, got, made, opened

TERM, ME = 5, b"m" * 16
BOOT_NS = 10**9


def agent_in(path: Path, slots: int = 64) -> TierAgent:
    agent = TierAgent(opened(path), 1 << 20, slots)
    assert agent.raise_term(max(TERM, agent.term), ME)
    agent.set_valid_until(BOOT_NS + 1)
    return agent


def keep(agent: TierAgent, number: int, wall_ms: int = 1000) -> Entry:
    """What a node does with one object that it was ordered to keep."""
    entry, data = made(number)
    claimed = agent.claim(msgspec.structs.replace(entry, sequence=number), agent.term, wall_ms)
    assert isinstance(claimed, Entry)
    assert agent.store.write(claimed, data) is Status.OK
    assert agent.seal(claimed, agent.term) is Status.OK
    return claimed


def retire(agent: TierAgent, entry: Entry, term: int = TERM) -> Status:
    slots, generations = np.array([entry.slot], np.uint32), np.array([entry.generation], np.uint64)
    (status,) = agent.retire(slots, generations, term).tolist()
    return Status(status)


def readable(agent: TierAgent, entry: Entry, boottime_ns: int = BOOT_NS) -> Status:
    found = agent.find(entry.slot, entry.generation, boottime_ns)
    return found if isinstance(found, Status) else Status.OK


def test_a_slot_goes_from_free_to_sealed_and_back(tmp_path: Path) -> None:
    agent = agent_in(tmp_path)
    entry = keep(agent, 1)
    assert readable(agent, entry) is Status.OK
    assert retire(agent, entry) is Status.OK
    assert readable(agent, entry) is Status.MOVED
    again = keep(agent, 2)
    assert again.slot == entry.slot and again.generation > entry.generation
    agent.close()


def test_nothing_is_readable_before_its_seal_or_without_a_lease(tmp_path: Path) -> None:
    agent = agent_in(tmp_path)
    claimed = agent.claim(made(1)[0], TERM, 1000)
    assert isinstance(claimed, Entry)
    assert readable(agent, claimed) is Status.MOVED
    agent.abort(claimed)
    entry = keep(agent, 2)
    assert readable(agent, entry, BOOT_NS + 1) is Status.EXPIRED
    agent.close()


def test_an_older_master_is_refused(tmp_path: Path) -> None:
    agent = agent_in(tmp_path)
    entry = keep(agent, 1)
    assert not agent.raise_term(TERM - 1, b"o" * 16)
    assert not agent.raise_term(TERM, b"o" * 16)  # another one of the same term
    assert retire(agent, entry, TERM - 1) is Status.STALE_TERM
    assert agent.claim(made(2)[0], TERM - 1, 1000) is Status.STALE_TERM
    assert readable(agent, entry) is Status.OK
    agent.close()
    later = TierAgent(opened(tmp_path), 1 << 20, 64)
    assert later.term == TERM and not later.raise_term(TERM - 1, ME)
    later.close()


@pytest.mark.parametrize("how", ["retire", "expire", "term"])
def test_what_is_given_up_while_it_is_written_never_counts(tmp_path: Path, how: str) -> None:
    agent = agent_in(tmp_path)
    entry, data = made(1)
    claimed = agent.claim(entry, TERM, 1000)
    assert isinstance(claimed, Entry)
    if how == "retire":
        assert retire(agent, claimed) is Status.OK
    elif how == "expire":
        assert agent.expire(np.array([3], np.uint64), np.array([1], np.uint64)) == 1
    else:
        agent.raise_term(TERM + 1, ME)
    agent.store.write(claimed, data)
    assert agent.seal(claimed, TERM) in (Status.EXPIRED, Status.STALE_TERM)
    assert agent.store.entries() == []
    assert agent.usage()["writing"] == 0
    assert keep(agent, 2).slot == claimed.slot  # its slot is free again
    agent.close()


def test_no_slot_left_is_said(tmp_path: Path) -> None:
    agent = agent_in(tmp_path, slots=2)
    keep(agent, 1)
    keep(agent, 2)
    assert agent.claim(made(3)[0], TERM, 1000) is Status.NO_SLOT
    agent.close()


def test_the_inventory_in_pieces_is_what_was_sealed_and_outlives_a_kill(tmp_path: Path) -> None:
    agent = agent_in(tmp_path / "a")
    entries = [keep(agent, number, wall_ms=number * 1000) for number in range(1, 20)]
    retire(agent, entries.pop(4))
    later = TierAgent(opened(as_killed(tmp_path / "a", tmp_path / "b")), 1 << 20, 64)
    for one in (agent, later):
        slots: list[int] = []
        keys = b""
        start = 0
        while start < one.slots:
            piece = one.inventory(start, 7)
            slots += piece["slot"].tolist()
            keys += piece["keys"]
            assert piece["next_start"] > start
            start = piece["next_start"]
        assert slots == [entry.slot for entry in entries]
        assert keys == b"".join(entry.key for entry in entries)
    assert later.inventory(0, 64)["last_used"].tolist() == [e.sequence for e in entries]
    assert got(later.store, entries[0].slot, entries[0].generation) == made(1)[1]  # type: ignore[arg-type]
    agent.close()
    later.close()


def test_changes_are_numbered_and_a_gap_is_said(tmp_path: Path) -> None:
    agent = agent_in(tmp_path)
    entry = keep(agent, 1)
    retire(agent, entry)
    changes = agent.changes(0, 100)
    assert changes is not None
    assert changes["sequence"].tolist() == [1, 2]
    assert changes["kind"].tolist() == [1, 3]
    assert changes["generation"].tolist() == [entry.generation] * 2
    later = agent.changes(1, 100)
    assert later is not None and later["kind"].tolist() == [3]
    nothing = agent.changes(2, 100)
    assert nothing is not None and nothing["kind"].size == 0
    agent._changes.popleft()  # as after CHANGES_KEPT more of them
    assert agent.changes(0, 100) is None
    agent.close()


def test_what_the_medium_lost_is_told_as_freed(tmp_path: Path) -> None:
    agent = agent_in(tmp_path)
    entry = keep(agent, 1)
    (bucket,) = tmp_path.glob("*.bucket")
    flip(bucket, bucket.read_bytes().index(made(1)[1]) + 5)
    assert agent.store.read(entry.slot, entry.generation, 0, -1) is Status.CORRUPT
    agent.drain()
    changes = agent.changes(1, 100)
    assert changes is not None and changes["kind"].tolist() == [3]
    assert readable(agent, entry) is Status.MOVED
    assert agent.usage()["corrupt_objects"] == 1
    agent.close()


def test_tombstones_and_what_was_heard_outlive_a_kill(tmp_path: Path) -> None:
    agent = agent_in(tmp_path / "a")
    for number in range(TOMBSTONES_MAX + 1):
        status = agent.tombstone_add(number.to_bytes(16, "little"), 3, number)
    assert status == Status.NO_SPACE
    assert agent.tombstone_remove((7).to_bytes(16, "little"))
    assert not agent.tombstone_remove((7).to_bytes(16, "little"))
    agent.heard(50_000, 60_000)
    agent.drain()
    later = TierAgent(opened(as_killed(tmp_path / "a", tmp_path / "b")), 1 << 20, 64)
    blob, terms, sequences = later.tombstones()
    assert len(blob) == 16 * (TOMBSTONES_MAX - 1)
    assert set(terms.tolist()) == {3} and 7 not in sequences.tolist()
    assert later.store.notes.heard_ms == 50_000
    agent.close()
    later.close()


def test_a_smaller_tier_drops_what_has_no_slot_any_more(tmp_path: Path) -> None:
    agent = agent_in(tmp_path)
    for number in range(1, 11):
        keep(agent, number)
    agent.close()
    small = agent_in(tmp_path, slots=4)
    assert small.inventory(0, 4)["slot"].tolist() == [0, 1, 2, 3]
    assert len(small.store.entries()) == 4
    small.close()
