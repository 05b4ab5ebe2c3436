"""What rivals are measured with: stamped memory, rounds, children. No rival is needed here."""

import sys
import time

import pytest
from bench.children import Child, ChildFailed
from bench.peers import mooncake_pressure, mooncake_steady, rounds
from bench.peers.memory import PAGE, Memory, block, pages
from bench.peers.rounds import CALLS_MIN, WARM_UP_CALLS, Case, Rival, Title, rows_of_round
from bench.peers.system import NEEDS
from bench.rows import problems_of

from moonpool.bench import pressure, steady_puts


def test_every_byte_of_a_block_depends_on_its_number() -> None:
    assert block(3, 2 * PAGE) == pages(6, 2 * PAGE)
    assert pages(5, PAGE) == (5).to_bytes(8, "little") * 512


def test_memory_tells_right_from_wrong() -> None:
    memory = Memory(4 * PAGE)
    memory.write(PAGE, block(1, PAGE))
    assert memory.holds(PAGE, block(1, PAGE))
    assert not memory.holds(0, block(1, PAGE))
    memory.clear()
    assert memory.holds(0, bytes(4 * PAGE))


def test_a_round_warms_up_measures_and_checks() -> None:
    calls: list[int] = []
    case = Case("one", lambda: calls.append(1), lambda: True, 1000, 4, lambda: {"more": 1.0})
    (row,) = rows_of_round(Title("store", "redis", "8"), Rival([case], []))
    assert problems_of(row) == []
    assert len(calls) >= WARM_UP_CALLS + CALLS_MIN
    assert {"p50_us", "p99_us", "gb_per_s", "ops_per_s", "cpu_s_per_gb", "more"} <= set(row)
    assert row["ok"] is True


def test_what_comes_before_a_round_and_after_each_call_is_done_and_not_timed() -> None:
    done: list[str] = []

    def rest() -> None:
        done.append("after")
        time.sleep(0.002)

    case = Case(
        "one",
        lambda: done.append("call"),
        lambda: True,
        begin=lambda: done.append("begin"),
        after=rest,
        span_s=0.0,
    )
    (row,) = rows_of_round(Title("pressure", "redis", "8"), Rival([case], []))
    assert done == ["begin", *["call", "after"] * (WARM_UP_CALLS + CALLS_MIN)]
    assert isinstance(row["ops_per_s"], float) and row["ops_per_s"] > 1000


def test_a_round_goes_on_until_it_is_enough_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    case = Case("one", lambda: calls.append(1), lambda: True, span_s=0.0)
    until = case._replace(enough=lambda: len(calls) == WARM_UP_CALLS + 50)
    next(rows_of_round(Title("pressure", "redis", "8"), Rival([until], [])))
    assert len(calls) == WARM_UP_CALLS + 50
    monkeypatch.setattr(rounds, "ENOUGH_S", 0.001)
    never = case._replace(enough=lambda: False)
    next(rows_of_round(Title("pressure", "redis", "8"), Rival([never], [])))


def test_a_rivals_pressure_is_ours() -> None:
    ours, theirs = vars(pressure), vars(mooncake_pressure)
    both = {name for name in ours.keys() & theirs.keys() if name.isupper()}
    assert {"ASKED", "PUTS_PER_S", "EVICT_OBJECTS", "MIX", "CHURN", "REPLICAS"} <= both
    assert {name: theirs[name] for name in both} == {name: ours[name] for name in both}
    assert mooncake_steady.BATCH == steady_puts.BATCH
    assert rounds.ENOUGH_S == pressure.ASK_MAX_S


def test_a_child_answers_line_by_line_and_ends_with_its_stdin() -> None:
    echo = "import sys\nfor line in sys.stdin: print('said', line, end='', flush=True)"
    with Child([sys.executable, "-c", echo], name="echo") as child:
        child.say("a")
        assert child.wait_for("said", 30) == "a"
        child.say("b")
        assert child.wait_for("said", 30) == "b"
        assert child.end() == 0


def test_a_failed_child_is_quoted() -> None:
    with Child([sys.executable, "-c", "raise SystemExit('no such thing')"], name="rival") as child:
        with pytest.raises(ChildFailed, match="rival ended early; it said: no such thing"):
            child.wait_for("ready", 30)


def test_a_silent_child_is_not_waited_for_without_end() -> None:
    silent = "import sys; sys.stdin.read()"
    with Child([sys.executable, "-c", silent], name="rival") as child:
        with pytest.raises(ChildFailed, match="did not end its work in 0 s"):
            child.wait_for("ready", 0.05)


def test_each_need_of_the_system_is_a_question_with_an_answer() -> None:
    assert all(isinstance(need.present(), bool) for need in NEEDS)
