"""Moonpool, its rivals and the machine's limits, measured in turns in one run.

    python -m bench.compare [--rounds N] [--only STEP ...] [--json] [--rows FILE]

Every round goes once through all subjects, so that a drift of the machine hits all alike; figures
are medians over rounds. Rivals stay up between their rounds, with their objects, and do nothing.
Exit status 1 when a subject failed or a byte was wrong, never because something was slow.
"""

import argparse
import contextlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from bench.children import ROOT, Child, ChildFailed
from bench.report import table
from bench.rows import Row, merged, problems_of
from bench.targets import verdict_row, verdicts

PEERS_PYTHON: Final = ROOT / ".venv-peers" / "bin" / "python"
START_S: Final = 600.0  # a million objects are put one by one by some
ROUND_S: Final = 300.0
ALONE_ROUNDS: Final = 3

Measure = Callable[[], Iterator[Row]]


class Step(NamedTuple):
    """One subject on one kind of work: `rival` names a module of bench.peers, else a command. With
    `anew` it is started for each round, since it is not still between them."""

    name: str
    command: tuple[str, ...] = ()
    rival: str = ""
    anew: bool = False


def _moonpool(bench: str, rounds: int) -> Step:
    command = (sys.executable, "-m", "moonpool", "bench", bench, "--json", "--rounds", str(rounds))
    return Step(f"moonpool-{bench}", command)


IN_TURNS: Final = (
    _moonpool("store", 1),
    Step("mooncake-store", rival="mooncake_store"),
    Step("redis-store", rival="redis_peer"),
    _moonpool("transfer", 1),
    Step("mooncake-transfer", rival="mooncake_te"),
    Step("nixl-transfer", rival="nixl_te", anew=True),
    Step("limits", (sys.executable, "-m", "bench.limits", "--rounds", "1")),
    _moonpool("exists", 1),
    Step("mooncake-exists", rival="mooncake_exists"),
    _moonpool("pressure", 1),
    Step("mooncake-pressure", rival="mooncake_pressure"),
    _moonpool("router", 1),
    Step("dynamo-router", rival="dynamo_router"),
    Step("dynamo-service", rival="dynamo_service"),
)
LOAD: Final = Step("load")
ALONE: Final = tuple(_moonpool(bench, ALONE_ROUNDS) for bench in ("catalog", "restart", "memory"))


class Run:
    """Rows as they come, and what went wrong on the way."""

    def __init__(self, keep: TextIO | None) -> None:
        self.rows: list[Row] = []
        self.failures: list[str] = []
        self._keep = keep

    def take(self, step: Step, rows: Iterator[Row]) -> None:
        """All rows of a step; a failure of it is noted, and the run goes on."""
        note(f"  {step.name}")
        try:
            for row in rows:
                self._add(step, row)
        except ChildFailed as error:
            self.failed(str(error))

    def failed(self, what: str) -> None:
        note(f"  failed: {what}")
        self.failures.append(what)

    def _add(self, step: Step, row: Row) -> None:
        if row.get("subject") == "machine" and row in self.rows:
            return  # each of our benches names it anew
        self.failures += [f"{step.name}: {problem}" for problem in problems_of(row)]
        if row.get("ok") is False:
            self.failed(f"{step.name}: wrong bytes in {row.get('case')!r}")
        self.rows.append(row)
        if self._keep is not None:
            print(json.dumps(row), file=self._keep, flush=True)


def compare(run: Run, rounds: int, steps: Sequence[Step], peers_python: Path) -> None:
    """`rounds` rounds through the steps taken in turns, then those that are ours alone."""
    with contextlib.ExitStack() as stack:
        measures = _started(stack, run, [s for s in steps if s in IN_TURNS], peers_python)
        for number in range(1, rounds + 1):
            note(f"round {number} of {rounds}")
            run.take(LOAD, iter([load_row(number)]))
            for step, measure in measures:
                run.take(step, measure())
    for step in steps:
        if step in ALONE:
            run.take(step, _rows_of_command(step))


def _started(
    stack: contextlib.ExitStack, run: Run, steps: Sequence[Step], peers_python: Path
) -> list[tuple[Step, Measure]]:
    """The steps with what makes a round of them; those whose rival does not start are left out."""
    measures: list[tuple[Step, Measure]] = []
    for step in steps:
        if step.rival and step.anew:
            program = (str(peers_python), "-m", f"bench.peers.{step.rival}", "--rounds", "1")
            step = step._replace(command=program)
        if not step.rival or step.anew:
            measures.append((step, lambda step=step: _rows_of_command(step)))  # type: ignore[misc]
            continue
        note(f"starting {step.name}")
        module = f"bench.peers.{step.rival}"
        child = Child([str(peers_python), "-m", module, "--on-demand"], name=step.name)
        stack.enter_context(child)
        try:
            child.wait_for("ready", START_S)
        except ChildFailed as error:
            run.failed(str(error))
            continue
        measures.append((step, lambda child=child: _rows_of_rival(child)))  # type: ignore[misc]
    return measures


def _rows_of_command(step: Step) -> Iterator[Row]:
    with Child(step.command, name=step.name) as child:
        for line in child.lines(START_S):
            yield json.loads(line)
        if (status := child.end()) != 0:
            raise child.failed(f"ended with status {status}")


def _rows_of_rival(child: Child) -> Iterator[Row]:
    child.say("round")
    for line in child.lines(ROUND_S):
        if line == "done":
            return
        yield json.loads(line)
    raise child.failed("ended in the middle of a round")


def load_row(number: int) -> Row:
    """How busy the machine was with others' work as well as ours, before a round."""
    return {
        "bench": "machine",
        "case": f"load before round {number}",
        "subject": "machine",
        "version": platform.release(),
        "rounds": 0,
        "load1": round(os.getloadavg()[0], 2),
    }


def note(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    known = {step.name: step for step in (*IN_TURNS, *ALONE)}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds through all subjects (5)")
    parser.add_argument("--only", nargs="+", choices=known, help="these steps", metavar="STEP")
    parser.add_argument("--json", action="store_true", help="JSON lines instead of the table")
    parser.add_argument("--rows", type=Path, help="append the rows of every round to this file")
    parser.add_argument("--peers-python", type=Path, default=PEERS_PYTHON, help="where rivals are")
    args = parser.parse_args()
    steps = [known[name] for name in args.only or known]
    if any(step.rival for step in steps) and not args.peers_python.exists():
        parser.error(f"no rivals at {args.peers_python}; `make bench-peers` installs them")
    if args.rows:
        args.rows.parent.mkdir(parents=True, exist_ok=True)
    with open(args.rows, "a") if args.rows else contextlib.nullcontext() as keep:
        run = Run(keep)
        compare(run, args.rounds, steps, args.peers_python)
    rows = merged(run.rows)
    found = verdicts(rows)
    if args.json:
        for row in (*rows, *map(verdict_row, found)):
            print(json.dumps(row))
    else:
        print(table(found))
    for failure in run.failures:
        note(f"failed: {failure}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
