"""The fleet: who may serve a request, and what is known of each worker."""

import numpy as np
import pytest

from moonpool.core.errors import BadInput, NoWorker
from moonpool.router.base import RouteRequest, Target, Worker
from moonpool.router.fleet import BLOCK_SIZE_DEFAULT, Fleet


def fleet_of(*workers: Worker) -> Fleet:
    fleet = Fleet()
    for worker in workers:
        fleet.add(worker)
    return fleet


def eligible(fleet: Fleet, request: RouteRequest, role: str = "both") -> list[str]:
    return fleet.names(fleet.eligible(request, role))[0]


def test_a_name_is_taken_once_and_a_place_used_again() -> None:
    fleet = fleet_of(Worker(id="a", ranks=2))
    with pytest.raises(BadInput, match="remove it first"):
        fleet.add(Worker(id="a"))
    places = fleet.member("a").places
    assert fleet.place_of(Target("a", 1)) == places[1] and fleet.place_of(Target("b", 0)) is None
    assert fleet.remove("a") is not None and fleet.remove("a") is None
    assert fleet.add(Worker(id="b")).places[0] in places
    with pytest.raises(BadInput, match="not registered"):
        fleet.member("a")


def test_busy_marks_end_by_the_clock_and_with_the_worker() -> None:
    fleet = fleet_of(Worker(id="a"), Worker(id="b"))
    places = np.array([fleet.member(one).places[0] for one in "ab"], np.int64)
    fleet.mark_busy("a", 10.0)
    assert fleet.marked_busy(places, 9.0).tolist() == [True, False]
    assert fleet.marked_busy(places, 10.0).tolist() == [False, False]
    assert not fleet.any_marked_busy
    fleet.mark_busy("b", 20.0)
    fleet.remove("b")
    assert not fleet.marked_busy(places[:1], 11.0).any() and not fleet.any_marked_busy


def test_a_block_size_that_is_not_known_is_that_of_its_model() -> None:
    fleet = fleet_of(Worker(id="a", model="m"), Worker(id="b", model="other", block_size=32))
    member = fleet.member("a")
    assert fleet.block_size(member) == BLOCK_SIZE_DEFAULT
    fleet.add(Worker(id="c", model="m", block_size=64))
    assert fleet.block_size(member) == 64
    fleet.learn_block_size(member, 8)
    assert fleet.block_sizes(np.array(member.places, np.int64)).tolist() == [8]


def test_groups_are_added_up_once_events_tell_of_them() -> None:
    fleet = fleet_of(Worker(id="a"))
    member = fleet.member("a")
    assert fleet.one_group
    fleet.learn_groups(member, 0b10)
    fleet.learn_groups(member, 0b100)
    assert fleet.groups(member.places[0]) == (1, 2) and not fleet.one_group


def test_pin_labels_taints_and_the_allowed() -> None:
    fleet = fleet_of(
        Worker(id="a", labels={"zone": "x"}),
        Worker(id="b", labels={"zone": "y"}),
        Worker(id="c", taints=frozenset({"gpu"})),
    )
    assert eligible(fleet, RouteRequest()) == ["a", "b"]
    assert eligible(fleet, RouteRequest(tolerates=frozenset({"gpu"}))) == ["a", "b", "c"]
    assert eligible(fleet, RouteRequest(labels={"zone": "y"})) == ["b"]
    assert eligible(fleet, RouteRequest(pin=Target("a", 0))) == ["a"]
    assert eligible(fleet, RouteRequest(allowed=frozenset({"b", "c"}))) == ["b"]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (RouteRequest(pin=Target("z", 0)), "pinned worker 'z'"),
        (RouteRequest(model="n"), "models here: m"),
        (RouteRequest(labels={"zone": "x"}), "labels"),
    ],
)
def test_nobody_is_said_with_why(request_: RouteRequest, said: str) -> None:
    with pytest.raises(NoWorker, match=said):
        fleet_of(Worker(id="a", model="m")).eligible(request_, "both")
    with pytest.raises(NoWorker, match="no worker is registered"):
        Fleet().eligible(RouteRequest(), "both")


def test_roles() -> None:
    fleet = fleet_of(Worker(id="p", role="prefill", transfer="h:1"), Worker(id="d", role="decode"))
    assert eligible(fleet, RouteRequest(), "prefill") == ["p"]
    assert eligible(fleet, RouteRequest(), "both") == ["d"]
    assert fleet.role("p") == "prefill"


def test_names_are_kept_for_a_bounded_number_of_sets() -> None:
    fleet = fleet_of(*(Worker(id=f"w{i}") for i in range(70)))
    for i in range(70):
        place = fleet.member(f"w{i}").places
        assert fleet.names(np.array(place, np.int64)) == ([f"w{i}"], [0])
        assert fleet.names(np.array(place, np.int64)) == ([f"w{i}"], [0])
