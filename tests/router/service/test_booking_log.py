"""Following another router's bookings: nothing is lost by gaps, restarts or repeats."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from moonpool.router.service.booking_log import (
    Booked,
    BookingFollower,
    BookingLog,
    Entry,
    Freed,
    Prefilled,
)


def booked(name: str) -> Booked:
    return Booked(name, "w", 0, "both", "m", 64, b"")


def follow(follower: BookingFollower, log: BookingLog) -> list[Entry]:
    return follower.follow(log.page(follower.epoch, follower.number))


def test_entries_come_in_order_and_once() -> None:
    log, follower = BookingLog("e1"), BookingFollower()
    follow(follower, log)
    entries: list[Entry] = [booked("a"), Prefilled("a"), booked("b"), Freed("a")]
    for entry in entries:
        log.add(entry)
    assert follow(follower, log) == entries
    assert follow(follower, log) == []
    assert follower.living == {"b"}


def test_a_new_follower_gets_what_lives() -> None:
    log = BookingLog("e1")
    for entry in (booked("a"), booked("b"), Prefilled("b"), Freed("a")):
        log.add(entry)
    assert follow(BookingFollower(), log) == [booked("b"), Prefilled("b")]


def test_a_follower_left_too_far_behind_starts_from_what_lives() -> None:
    log, follower = BookingLog("e1", entries_max=4), BookingFollower()
    log.add(booked("old"))
    follow(follower, log)
    for number in range(10):
        log.add(booked(str(number)))
    log.add(Freed("old"))
    done = follow(follower, log)
    assert done[0] == Freed("old")
    assert follower.living == {str(number) for number in range(10)}


def test_another_life_of_the_router_ends_the_bookings_of_the_last() -> None:
    log, follower = BookingLog("e1"), BookingFollower()
    log.add(booked("a"))
    follow(follower, log)
    again = BookingLog("e2")
    again.add(booked("b"))
    assert follow(follower, again) == [Freed("a"), booked("b")]


def test_a_number_from_the_future_is_answered_whole() -> None:
    log = BookingLog("e1")
    log.add(booked("a"))
    assert log.page("e1", 99).whole and log.page("e1", -1).whole


def test_hashes_of_another_version_are_not_taken() -> None:
    log = BookingLog("e1")
    log.add(msgspec.structs.replace(booked("a"), hashes=b"12345678"))
    page = log.page("", 0)
    other = msgspec.structs.replace(page, hash_version=page.hash_version - 1)
    assert BookingFollower().follow(page) == page.entries
    assert BookingFollower().follow(other) == [booked("a")]


def test_long_pages_come_in_parts() -> None:
    log, follower = BookingLog("e1"), BookingFollower()
    follow(follower, log)
    for number in range(5000):
        log.add(booked(str(number)))
    first = follow(follower, log)
    assert len(first) == 4096 and len(first) + len(follow(follower, log)) == 5000


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("bpf.x")), max_size=60))
def test_a_follower_ends_with_what_lives(steps: list[tuple[int, str]]) -> None:
    """Any bookings, polls (.) and restarts (x), with room for three entries only."""
    log, follower, lives = BookingLog("0", entries_max=3), BookingFollower(), 0
    living: set[str] = set()
    held: set[str] = set()

    def poll() -> None:
        for entry in follow(follower, log):
            if isinstance(entry, Booked):
                assert entry.id not in held
                held.add(entry.id)
            elif isinstance(entry, Freed):
                held.discard(entry.id)

    for number, step in steps:
        name = f"{lives}-{number}"
        if step == "b" and name not in living:
            living.add(name)
            log.add(booked(name))
        elif step == "p":
            log.add(Prefilled(name))
        elif step == "f":
            living.discard(name)
            log.add(Freed(name))
        elif step == ".":
            poll()
        elif step == "x":
            lives += 1
            log = BookingLog(str(lives), entries_max=3)
            living.clear()
    poll()
    assert held == living == follower.living
