"""The heartbeat's decisions: moments are arguments."""

from hypothesis import given
from hypothesis import strategies as st

from moonpool.transfer.pulse import Pulse, Verdict

EVERY_S, PATIENCE_S = 0.2, 0.6
ROUND_TRIP_S = 0.001


def hung_at(stops_s: float, lateness_s: list[float], until_s: float) -> float | None:
    """When a peer that answers until `stops_s` is held to hang; each look is late by the next of
    `lateness_s` (then by nothing), as if we had not run meanwhile."""
    pulse = Pulse(EVERY_S, PATIENCE_S, 0.0)
    now_s, answer_s = 0.0, None
    late = list(lateness_s)
    while now_s < until_s:
        # What came in while we did not run is seen before the look, as in the keeper.
        if answer_s is not None and answer_s <= now_s:
            pulse.answered(now_s)
            answer_s = None
        verdict = pulse.look(now_s)
        if verdict is Verdict.HANGS:
            return now_s
        if verdict is Verdict.ASK and now_s < stops_s:
            answer_s = now_s + ROUND_TRIP_S
        now_s = max(pulse.due_s(now_s), now_s + 0.001) + (late.pop(0) if late else 0.0)
    return None


@given(st.floats(0, 5))
def test_a_peer_that_stops_is_found_in_time(stops_s: float) -> None:
    found_s = hung_at(stops_s, [], 20.0)
    assert found_s is not None and stops_s <= found_s <= stops_s + EVERY_S + PATIENCE_S + 0.01


@given(st.lists(st.floats(0, 30), max_size=10))
def test_one_that_answers_never_hangs_however_late_we_look(lateness_s: list[float]) -> None:
    assert hung_at(1e9, lateness_s, 500.0) is None


def test_our_own_sleep_is_not_the_peer_s_fault() -> None:
    """It was asked just before this process was stopped for a minute, and answered meanwhile; the
    answer is read a moment after we look."""
    pulse = Pulse(EVERY_S, PATIENCE_S, 0.0)
    assert pulse.look(0.0) is Verdict.ASK
    assert pulse.look(60.0) is Verdict.WAIT
    pulse.answered(60.01)
    assert pulse.look(60.01) in (Verdict.ASK, Verdict.WAIT)


def test_one_that_is_slow_within_its_patience_is_waited_for() -> None:
    pulse = Pulse(EVERY_S, PATIENCE_S, 0.0)
    assert pulse.look(0.0) is Verdict.ASK
    now_s = 0.0
    while now_s < PATIENCE_S - 0.01:
        assert pulse.look(now_s) is Verdict.WAIT
        now_s = max(pulse.due_s(now_s), now_s + 0.01)
        assert now_s <= PATIENCE_S
    pulse.answered(PATIENCE_S - 0.005)
    assert pulse.look(PATIENCE_S) is Verdict.ASK
