"""Which blocks the pool took and lost, in vLLM's words."""

from moonpool.connectors.vllm.events import EventBook, Removed, Stored, published
from tests.connectors.vllm.engine_shapes import chain

HASHES = chain("text", 4)
NUMBERS = [published(value, as_number=True) for value in HASHES]


def planned() -> EventBook:
    book = EventBook(2)
    book.planned(HASHES[:3], NUMBERS[:3], None, [1, 2, 3, 4, 5, 6], 7, "lora")
    return book


def test_hashes_are_written_as_vllm_does() -> None:
    assert published(b"\xff" * 24 + (258).to_bytes(8, "big"), as_number=True) == 258
    assert published(HASHES[0], as_number=False) == HASHES[0]


def test_a_run_is_one_event() -> None:
    book = planned()
    book.stored(HASHES[:2])
    book.stored(HASHES[2:3])
    first, second = book.take()
    assert first == Stored(tuple(NUMBERS[:2]), None, (1, 2, 3, 4), 2, 7, "lora")
    assert second == Stored((NUMBERS[2],), NUMBERS[1], (5, 6), 2, 7, "lora")
    assert book.take() == []


def test_a_hole_splits_it() -> None:
    book = planned()
    book.stored([HASHES[0], HASHES[2]])
    assert [len(event.hashes) for event in book.take()] == [1, 1]


def test_only_what_was_told_of_is_removed() -> None:
    book = planned()
    book.stored(HASHES[:1])
    book.take()
    book.removed([HASHES[3], HASHES[0], HASHES[1]])
    assert book.take() == [Removed((NUMBERS[0],))]
    book.removed([HASHES[0]])
    assert book.take() == []


def test_nothing_is_told_twice() -> None:
    book = planned()
    book.stored(HASHES[:1])
    book.stored(HASHES[:1])
    assert len(book.take()) == 1
