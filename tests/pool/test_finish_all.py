"""Calls side by side: one that hangs until the deadline costs the others nothing."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from moonpool.pool.ports import Outcome, finish_all


def outcome(number: int) -> Outcome:
    return Outcome(np.array([number], np.uint8))


class Apart:
    """Goes on until the others have ended: by itself once it is begun."""

    def __init__(self, number: int, over: threading.Event) -> None:
        self.number, self.over, self.begun = number, over, False

    def begin(self) -> None:
        self.begun = True

    def __call__(self) -> Outcome:
        assert self.over.is_set(), "what is here at once was waited for after what hangs"
        return outcome(self.number)


def test_what_hangs_is_begun_first_and_waited_for_last() -> None:
    over = threading.Event()
    slow = [Apart(0, over), Apart(2, over)]

    def at_once() -> Outcome:
        assert all(one.begun for one in slow)
        over.set()
        return outcome(1)

    outcomes = finish_all([slow[0], at_once, slow[1]])
    assert [int(one.status[0]) for one in outcomes] == [0, 1, 2]


def test_a_call_alone_has_no_thread() -> None:
    over = threading.Event()
    over.set()
    one = Apart(7, over)
    assert int(finish_all([one])[0].status[0]) == 7 and not one.begun
    assert finish_all([]) == []


def test_an_error_is_the_callers() -> None:
    def broken() -> Outcome:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        finish_all([broken, lambda: outcome(1)])
