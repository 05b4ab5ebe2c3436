"""How a rival is measured and spoken to: rounds of cases, alone or one at a time on demand.

A rival is a context that yields its cases and the pids that work on them. Alone it measures
`--rounds` rounds and prints a row a case. With `--on-demand` it says "ready", measures one round
for each line "round" on its stdin, prints the rows and then "done": a runner can so take turns
between subjects, and a neighbour's noise hits all of them.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from bench.rows import Row, merged, short

SPAN_S: Final = 0.3  # of timed calls, per case and round
ENOUGH_S: Final = 20.0  # of timed calls, at the most, where a case waits for something
CALLS_MIN: Final = 5
WARM_UP_CALLS: Final = 3
READY: Final = "ready"
ROUND: Final = "round"
DONE: Final = "done"


class Case(NamedTuple):
    """One kind of call: `arrived` says after a round, untimed, whether the bytes are right."""

    name: str
    call: Callable[[], object]
    arrived: Callable[[], bool]
    bytes_per_call: int = 0
    items_per_call: int = 1
    extra: Callable[[], Row] | None = None  # further figures, asked after a round
    after: Callable[[], object] | None = None  # untimed, after each call
    begin: Callable[[], object] | None = None  # untimed, before a round
    span_s: float = SPAN_S
    enough: Callable[[], bool] | None = None  # untimed; a round goes on until it is so, or too long


class Rival(NamedTuple):
    """The cases of a running rival, and the processes that work on them beside this one."""

    cases: Sequence[Case]
    pids: Sequence[int]


class Title(NamedTuple):
    """What is the same in each row of a rival."""

    bench: str
    subject: str
    version: str


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system seconds of this process and of others, to the nanosecond."""
    # Linux makes a process's CPU clock of its pid, as clock_getcpuclockid(3) does.
    return time.process_time() + sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def one_round(case: Case, pids: Sequence[int]) -> Row:
    """Calls for the case's span, a few first to warm up; the figures of one round."""
    if case.begin is not None:
        case.begin()
    for _ in range(WARM_UP_CALLS):
        case.call()
        if case.after is not None:
            case.after()
    clock = time.perf_counter_ns
    laps: list[int] = []
    spent_ns, end_ns = 0, int(case.span_s * 1e9)
    cpu_before = cpu_seconds(pids)
    while spent_ns < end_ns or len(laps) < CALLS_MIN or not _enough(case, spent_ns / 1e9):
        start = clock()
        case.call()
        laps.append(clock() - start)
        spent_ns += laps[-1]
        if case.after is not None:
            case.after()
    cpu_s = cpu_seconds(pids) - cpu_before
    laps.sort()
    figures = {
        "p50_us": laps[len(laps) // 2] / 1e3,
        "p99_us": laps[len(laps) * 99 // 100] / 1e3,
        "ops_per_s": len(laps) * case.items_per_call / (spent_ns / 1e9),
    }
    if case.bytes_per_call:
        gb = len(laps) * case.bytes_per_call / 1e9
        figures |= {"gb_per_s": gb / (spent_ns / 1e9), "cpu_s_per_gb": cpu_s / gb}
    row: Row = {key: short(value) for key, value in figures.items()}
    return row | (case.extra() if case.extra else {}) | {"ok": case.arrived()}


def _enough(case: Case, spent_s: float) -> bool:
    return case.enough is None or spent_s >= ENOUGH_S or case.enough()


def rows_of_round(title: Title, rival: Rival) -> Iterator[Row]:
    """A row a case."""
    for case in rival.cases:
        names = {"bench": title.bench, "case": case.name, "subject": title.subject}
        figures = one_round(case, rival.pids)
        yield {**names, "version": title.version, "rounds": 1, **figures}


def main(title: Title, start: Callable[[], AbstractContextManager[Rival]]) -> None:
    """The command line of a rival."""
    parser = argparse.ArgumentParser(description=f"{title.subject} on the work of {title.bench}")
    parser.add_argument("--rounds", type=int, default=3, help="medians are over so many (3)")
    parser.add_argument("--on-demand", action="store_true", help="a round per line on stdin")
    args = parser.parse_args()
    with start() as rival:
        if args.on_demand:
            print(READY, flush=True)
            for line in sys.stdin:
                assert line.strip() == ROUND, line
                _print(rows_of_round(title, rival))
                print(DONE, flush=True)
        else:
            rounds = [row for _ in range(args.rounds) for row in rows_of_round(title, rival)]
            _print(merged(rounds))


def _print(rows: Iterable[Row]) -> None:
    for row in rows:
        print(json.dumps(row), flush=True)
