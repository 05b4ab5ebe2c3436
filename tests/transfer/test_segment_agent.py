"""The segment's agent as Python sees it; native/tests covers the state machine in depth."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moonpool import _core
from tests.transfer.shared_segment import (
    BOUNDS,
    MOVED,
    NO_SPACE,
    OK,
    TOO_BIG,
    claim,
    failed,
    memory_agent,
    put,
    records,
    retire,
    seal,
)

MIB = 1 << 20


def create(path: Path, **options: Any) -> _core.SegmentAgent:
    return _core.SegmentAgent.create(str(path), MIB, 4096, 64, populate=False, **options)


def test_put_and_read() -> None:
    with memory_agent() as agent:
        at = put(agent, b"some bytes")
        assert agent.read(at.slot, at.generation) == b"some bytes"
        assert agent.read(at.slot, at.generation, 5, 3) == b"byt"
        assert agent.read(at.slot, at.generation, 5, 6) == failed(BOUNDS)
        assert agent.read(at.slot, at.generation + 1) == failed(MOVED)


def test_a_batch_answers_per_claim() -> None:
    with memory_agent() as agent:
        keys = [b"a", b"bb", b"ccc"]
        claims = records([10, 2 * MIB, MIB], keys)
        status, _, generation = agent.claim(claims, b"".join(keys), 0)
        assert status.tolist() == [OK, TOO_BIG, NO_SPACE]
        assert generation.tolist() == [1, 0, 0]


def test_claims_must_match_their_blob() -> None:
    with memory_agent() as agent:
        with pytest.raises(ValueError, match="keys take 3 bytes, the blob has 2"):
            agent.claim(records([1], [b"abc"]), b"ab", 0)
        with pytest.raises(ValueError, match="48 bytes each"):
            agent.claim(b"x" * 47, b"", 0)


def test_columns_are_checked() -> None:
    with memory_agent() as agent:
        slots, generations = np.zeros(2, np.uint32), np.zeros(2, np.uint64)
        with pytest.raises(TypeError, match="slot"):
            agent.abort(generations, generations)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="generation has 1 entries, expected 2"):
            agent.abort(slots, generations[:1])
        with pytest.raises(TypeError):
            agent.abort(slots, np.zeros(4, np.uint64)[::2])


def test_inventory_has_all_columns_in_chunks() -> None:
    with memory_agent() as agent:
        keys = [b"k%d" % i for i in range(10)]
        for i, key in enumerate(keys):
            put(agent, bytes(i), key, term=2, seq=i, tenant=7, expiry_ms=-5, last_used=9)
        seen, start = [], 0
        while start < agent.slots:
            chunk = agent.inventory(start, 4)
            ends = chunk["key_ends"].tolist()
            seen += [chunk["keys"][a:b] for a, b in zip([0, *ends], ends, strict=False)]
            start = chunk["next_start"]
        assert sorted(seen) == sorted(keys)
        whole = agent.inventory(0, agent.slots)
        assert whole["sequence"] == agent.sequence == 10
        assert whole["term"].tolist() == [2] * 10
        assert sorted(whole["size"]) == list(range(10))
        assert (whole["tenant"] == 7).all()
        assert (whole["expiry_ms"] == -5).all()
        assert whole["parents"] == b""


def test_expire_by_version() -> None:
    with memory_agent() as agent:
        writing = claim(agent, 10, term=1, seq=1)
        sealed = put(agent, b"x", term=1, seq=2)
        versions = np.array([1, 1, 1], np.uint64), np.array([1, 2, 3], np.uint64)
        assert agent.expire(*versions) == 2
        assert seal(agent, writing) == MOVED
        assert agent.read(sealed.slot, sealed.generation) == failed(MOVED)
        assert agent.drain() == 2


def test_a_fill_of_random_sizes_uses_nearly_all() -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    sizes = np.random.default_rng(seed).integers(1, 40_000, 4000)
    with memory_agent(16 * MIB, slots=4000) as agent:
        keys = [b"key"] * len(sizes)
        status, slot, generation = agent.claim(records(sizes.tolist(), keys), b"key" * 4000, 0)
        full = int((status == OK).sum())
        usage = agent.usage()
        assert usage["writing"] == full
        assert usage["writing_bytes"] >= 0.95 * agent.data_bytes
        done = status == OK
        assert not agent.abort(slot[done], generation[done]).any()
        assert agent.usage()["largest_free"] == agent.data_bytes


def test_files_are_private(tmp_path: Path) -> None:
    agent = create(tmp_path / "segment")
    assert (tmp_path / "segment").stat().st_mode & 0o777 == 0o600
    agent.destroy()
    assert not (tmp_path / "segment").exists()


def test_a_folder_open_to_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="chmod 700"):
        create(tmp_path / "open" / "segment")


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "segment").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        create(tmp_path / "segment")
    assert (tmp_path / "segment").read_bytes() == b"mine"


def test_lack_of_space_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(_core.SegmentSpace, match="no space for"):
        _core.SegmentAgent.create(str(tmp_path / "segment"), 1 << 45, 0, 16, populate=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("capacity", "slots"), [(0, 1), (1, 0), (1 << 60, 1), (1, 1 << 31)], ids=str
)
def test_impossible_numbers_are_refused(capacity: int, slots: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        _core.SegmentAgent.create(None, capacity, 0, slots, populate=False)


def test_adopt_keeps_the_identity(tmp_path: Path) -> None:
    agent = create(tmp_path / "segment", tombstones=2)
    agent.raise_term(3, b"i" * 16)
    agent.tombstone_add(b"h" * 16, 1, 2)
    at = put(agent, b"kept")
    incarnation = agent.incarnation
    agent.close()
    with pytest.raises(_core.SegmentClosed, match="closed"):
        agent.usage()
    agent = _core.SegmentAgent.adopt(str(tmp_path / "segment"))
    assert (agent.incarnation, agent.term) == (incarnation, 3)
    assert agent.tombstones()[0] == b"h" * 16
    assert agent.read(at.slot, at.generation) == b"kept"
    assert agent.adopted == {"sealed": 1, "writing": 0, "retired": 0, "freed": 0, "broken": 0}
    agent.destroy()


def test_a_living_owner_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "segment")
    agent = create(tmp_path / "segment")
    with pytest.raises(_core.SegmentLocked, match=f"living process {os.getpid()}"):
        _core.SegmentAgent.adopt(path)
    info = _core.segment_info(path)
    assert info["problem"] is None
    assert (info["owner_alive"], info["owner_pid"]) == (True, os.getpid())
    assert info["incarnation"] == agent.incarnation
    assert not _core.remove_dead_segment(path)
    agent.close()
    assert not _core.segment_info(path)["owner_alive"]
    assert _core.remove_dead_segment(path)


@pytest.mark.parametrize("content", [b"", b"x" * 10_000, bytes(10_000)], ids=["", "x", "zeros"])
def test_other_files_are_no_segments(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(_core.SegmentFormat):
        _core.SegmentAgent.adopt(str(tmp_path / "file"))
    assert _core.segment_info(str(tmp_path / "file"))["problem"]


def test_retire_is_final_and_repeatable() -> None:
    with memory_agent() as agent:
        at = put(agent, b"x")
        assert retire(agent, at) == OK
        assert retire(agent, at) == MOVED
        assert agent.read(at.slot, at.generation) == failed(MOVED)
        columns = agent.changes(0, 10)
        assert columns is not None
        assert columns["kind"].tolist() == [1, 2]
