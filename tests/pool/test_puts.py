"""A batch of a put in columns: items are made for whoever looks at them."""

from __future__ import annotations

import pytest

from moonpool.core.errors import BadInput, BadKey, BadSize
from moonpool.pool.inputs import as_items, as_puts
from moonpool.pool.puts import Columns, Puts
from moonpool.pool.results import PutResult, PutStatus

KEYS = [b"a", b"bc", b"def"]
VALUES = [b"x", b"", b"value"]


def plain(columns: Columns) -> tuple[list[bytes], list[bytes], list[int]]:
    return columns.keys, [bytes(source) for source in columns.sources], columns.sizes.tolist()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_columns_are_those_of_the_items(kind: type) -> None:
    puts = as_puts(list(KEYS), [kind(value) for value in VALUES], None)
    items = as_items(KEYS, VALUES, None)
    assert len(puts) == 3
    assert plain(puts.columns([0, 1, 2])) == plain(Puts.of(items).columns([0, 1, 2]))
    assert plain(puts.columns([2])) == ([b"def"], [b"value"], [5])
    assert [(i.key, bytes(i.source), i.size, i.parent) for i in puts.items] == [
        (i.key, bytes(i.source), i.size, i.parent) for i in items
    ]


def test_a_caller_s_list_may_change_afterwards() -> None:
    values = list(VALUES)
    puts = as_puts(KEYS, values, None)
    values[0] = b"other"
    assert puts.columns([0, 1, 2]).sources[0] == b"x"


def test_what_was_stored_needs_no_items() -> None:
    puts = as_puts(KEYS, VALUES, None)
    puts.store_all()
    assert puts.results() == [PutResult(PutStatus.STORED, 1)] * 3
    assert puts._items is None


def test_items_that_were_made_have_their_results() -> None:
    puts = as_puts(KEYS, VALUES, None)
    puts.items[1].result = PutResult(PutStatus.EXISTS)
    puts.store_all()
    assert puts.results() == [PutResult(PutStatus.STORED, 1)] * 3
    puts.items[1].result = PutResult(PutStatus.EXISTS)
    assert [one.status for one in puts.results()] == ["stored", "exists", "stored"]


def test_parents_are_named() -> None:
    puts = as_puts(KEYS, VALUES, "chain", b"root")
    assert [item.parent for item in puts.items] == [-1, 0, 1]
    assert puts.items[0].outside_parent == b"root"


def test_bad_input_is_refused_at_once() -> None:
    with pytest.raises(BadSize, match="3 keys but 2 values"):
        as_puts(KEYS, VALUES[:2], None)
    with pytest.raises(BadKey):
        as_puts([b""], [b"x"], None)
    with pytest.raises(BadInput):
        as_puts([b"a"], [7], None)
