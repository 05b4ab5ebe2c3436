"""A batch is laid out while the master answers: its claims, and when the work is done."""

from __future__ import annotations

import numpy as np
import pytest

from moonpool._core import PutBatch, claim_records
from moonpool.core.clock import Deadline, SystemClock
from moonpool.pool import messages as m
from moonpool.pool.link import BlockingLink
from moonpool.pool.ports import CLAIM_DTYPE, BatchPutCall
from moonpool.pool.protocol_reserve import PutOptions, lay_out
from moonpool.pool.puts import PutItem, Puts
from tests.faults.pool_rig import MIB, running

KEYS = [b"a", b"bc", b"def"]
VALUES = [b"x", b"", b"value"]
NUMBERS = np.array([7, 8, 9], np.uint64)


def items() -> list[PutItem]:
    return [
        PutItem(key, value, len(value), place - 1)
        for place, (key, value) in enumerate(zip(KEYS, VALUES, strict=True))
    ]


def test_the_claims_are_those_of_a_batch_without_parents() -> None:
    sizes = np.array([len(value) for value in VALUES], np.uint64)
    batch = PutBatch(KEYS, list(VALUES), sizes, None, 1, 5, 6, 2)
    plain = claim_records(KEYS, sizes, NUMBERS, term=3, replicas=1, expiry_ms=5, tenant=6, pin=2)
    assert batch.claims(3, NUMBERS) == plain


def test_each_claim_names_its_parent() -> None:
    batch = items()
    batch[0].outside_parent = b"root"
    ready = lay_out(Puts.of(batch), [0, 1, 2], PutOptions(chain=True))
    call = BatchPutCall(ready.batch, NUMBERS.tobytes(), 3, ready.sources, ready.nbytes)
    plain = call.written_out()
    assert plain.blob == b"a" + b"root" + b"bc" + b"a" + b"def" + b"bc"
    assert plain.records["parent_len"].tolist() == [4, 1, 2]
    assert plain.records["sequence"].tolist() == [7, 8, 9]
    assert plain.records["term"].tolist() == [3, 3, 3]
    assert plain.records.dtype == CLAIM_DTYPE
    assert (ready.nbytes, plain.sources) == (6, VALUES)


def test_what_is_left_of_a_batch_is_laid_out_alone() -> None:
    ready = lay_out(Puts.of(items()), [1, 2], PutOptions())
    records, blob = ready.batch.claims(1, NUMBERS[:2])
    claims = np.frombuffer(records, CLAIM_DTYPE)
    assert claims["size"].tolist() == [0, 5]
    assert blob == b"bc" + b"a" + b"def" + b"bc"


def test_a_value_that_was_resized_meanwhile_is_refused() -> None:
    batch, value = items(), bytearray(b"four")
    batch[1] = PutItem(b"bc", value, len(value), 0)
    value.append(0)
    with pytest.raises(ValueError, match="value 1 was of 4 bytes when it was put, now 5"):
        lay_out(Puts.of(batch), [0, 1, 2], PutOptions())


def test_a_value_cannot_be_resized_once_it_is_laid_out() -> None:
    batch, value = items(), bytearray(b"four")
    batch[1] = PutItem(b"bc", value, len(value), 0)
    ready = lay_out(Puts.of(batch), [0, 1, 2], PutOptions())
    with pytest.raises(BufferError):
        value.append(0)
    assert len(ready.batch) == 3


@pytest.mark.parametrize("numbers", [NUMBERS[:2], np.append(NUMBERS, NUMBERS)])
def test_as_many_numbers_as_objects_are_needed(numbers: np.ndarray) -> None:
    ready = lay_out(Puts.of(items()), [0, 1, 2], PutOptions())
    with pytest.raises(ValueError, match="sequences"):
        ready.batch.claims(1, numbers)


def test_work_is_done_between_request_and_answer() -> None:
    with running(memory=8 * MIB) as rig:
        clock = SystemClock()
        deadline = Deadline.after(clock.monotonic(), 10)
        link = BlockingLink(rig.address, "", "tester", deadline)
        done: list[int] = []
        assert isinstance(
            link.request(m.Topology(), deadline, lambda: done.append(1)), m.TopologyIs
        )
        assert done == [1]

        def fails() -> None:
            raise BufferError("gone")

        with pytest.raises(BufferError):
            link.request(m.Topology(), deadline, fails)
        # Its answer is on the way: nobody else may take it for theirs.
        assert link.closed
