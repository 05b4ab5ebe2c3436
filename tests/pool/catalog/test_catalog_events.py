"""The event log: numbered, bounded, resumable, re-based (P10)."""

from __future__ import annotations

import numpy as np

from moonpool.pool.catalog.events import EventLog
from tests.pool.catalog.harness import Pool


def add(log: EventLog, *keys: bytes) -> None:
    ends = np.cumsum([len(key) for key in keys], dtype=np.uint32)
    none = np.zeros(len(keys), np.uint32)
    log.add_keys("put", 7, b"".join(keys), ends, b"", none, np.ones(len(keys), np.uint64))


def test_events_are_numbered_in_order_over_batches() -> None:
    log = EventLog(100, 1)
    add(log, b"a", b"bb")
    log.add("node_lost", "n0", 9)
    add(log, b"c")
    events, rebase = log.read(1, 1, 99)
    assert not rebase
    assert [(e.sequence, e.kind, e.key, e.node) for e in events] == [
        (1, "put", b"a", ""),
        (2, "put", b"bb", ""),
        (3, "node_lost", b"", "n0"),
        (4, "put", b"c", ""),
    ]


def test_reading_resumes_anywhere_and_in_pieces() -> None:
    log = EventLog(100, 1)
    for batch in range(5):
        add(log, *(b"%d" % i for i in range(3 * batch, 3 * batch + 3)))
    seen: list[bytes] = []
    sequence = 1
    while events := log.read(1, sequence, 4)[0]:
        seen += [event.key for event in events]
        sequence += len(events)
    assert seen == [b"%d" % i for i in range(15)]
    assert log.read(1, 16, 4) == ([], False)


def test_the_log_is_bounded_and_old_positions_rebase() -> None:
    log = EventLog(4, 1)
    for i in range(10):
        add(log, b"%d" % i)
    assert len(log) == 4
    assert log.read(1, 6, 9) == ([], True)
    assert [event.key for event in log.read(1, 7, 9)[0]] == [b"6", b"7", b"8", b"9"]


def test_positions_in_the_future_and_other_terms_rebase() -> None:
    log = EventLog(4, 1)
    add(log, b"a")
    assert log.read(1, 3, 9)[1]
    assert log.read(2, 1, 9)[1]
    log.new_term(2)
    assert log.read(1, 2, 9)[1]
    assert log.read(2, 2, 9) == ([], False)
    assert (log.term, len(log), log.next_sequence) == (2, 0, 2)


def test_an_empty_batch_is_no_event() -> None:
    log = EventLog(4, 1)
    add(log)
    assert log.next_sequence == 1


def test_every_cause_is_logged_with_key_parent_and_size() -> None:
    pool = Pool()
    pool.add_segment(10)
    pool.put([b"a", b"b"], 3, chain=True)
    pool.put([b"c"], 2, parents=[-2], outside=[b"b"])
    pool.put([b"a"], 2, replace=True)
    pool.remove([b"b"])
    pool.put([b"x"], 8)
    events = pool.catalog.events.read(1, 1, 99)[0]
    assert [(e.kind, e.key, e.parent, e.size) for e in events] == [
        ("put", b"a", b"", 3),
        ("put", b"b", b"a", 3),
        ("put", b"c", b"b", 2),
        ("replace", b"a", b"", 2),
        ("remove", b"b", b"a", 3),
        ("evict", b"c", b"b", 2),
        ("put", b"x", b"", 8),
    ]
    assert [e.sequence for e in events] == list(range(1, 8))


def test_what_expired_and_what_was_lost_were_removed_by_nobody() -> None:
    pool = Pool()
    pool.add_segment(10)
    pool.put([b"t"], expiry_ms=pool.wall_ms + 5)
    pool.put([b"c"])
    pool.wall_ms += 10
    pool.retire(pool.catalog.sweep(pool.now, pool.wall_ms))
    _, replicas = pool.catalog.table.replicas_of(np.array([pool.row(b"c")], np.int32))
    pool.catalog.lose(replicas, pool.now, pool.wall_ms)
    events = pool.catalog.events.read(1, 3, 99)[0]
    assert [(e.kind, e.key, e.gone) for e in events] == [
        ("expire", b"t", True),
        ("lose", b"c", True),
    ]


def test_keys_granted_in_part_are_logged_all_the_same() -> None:
    pool = Pool()
    pool.add_segment(100)
    pool.put([b"b"])
    pool.put([b"a", b"b", b"c"], parents=[-1, -1, 0])
    events = pool.catalog.events.read(1, 2, 99)[0]
    assert [(e.kind, e.key, e.parent) for e in events] == [("put", b"a", b""), ("put", b"c", b"a")]
