"""What the master counts of its answers."""

from moonpool.pool import messages as m
from moonpool.pool.master_counts import AnswerCounts


def found(*status: m.LookupStatus) -> m.Found:
    return m.Found(bytes(status), b"", b"", b"", b"", b"", m.ReplicaColumn(), 1)


def reserved(*status: m.PutStatus) -> m.Reserved:
    return m.Reserved(1, bytes(status), b"", b"", b"", 1, 1)


def test_keys_are_counted_by_status() -> None:
    counts = AnswerCounts()
    words = m.LookupStatus
    counts.answered(found(words.ABSENT, words.FOUND, words.ABSENT, words.RECOVERING))
    counts.answered(found(words.FOUND, words.FOUND))
    counts.answered(found())
    assert counts.lookups == {"found": 3, "absent": 2, "recovering": 1}


def test_a_granted_put_counts_at_its_commit() -> None:
    counts = AnswerCounts()
    words = m.PutStatus
    counts.answered(reserved(words.GRANTED, words.EXISTS, words.GRANTED))
    counts.answered(reserved(words.GRANTED, words.GRANTED))
    counts.answered(m.Committed(bytes([words.COMMITTED, words.GONE])))
    assert counts.puts == {"exists": 1, "committed": 1, "gone": 1}


def test_exists_and_errors() -> None:
    counts = AnswerCounts()
    counts.answered(m.Existence(b"\1\0\1"))
    counts.answered(m.Failure("bad_input", "no"))
    counts.answered(m.Done())
    assert counts.exists == {"found": 2, "absent": 1} and counts.failures == 1
