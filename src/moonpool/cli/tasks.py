"""What `copy`, `move`, `clear` and `task` share: a task's keys, its progress, what became of it."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from typing import TYPE_CHECKING

from moonpool.cli.client import add_client_options, key_text
from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK
from moonpool.cli.progress import progress
from moonpool.core.errors import BadInput
from moonpool.core.units import format_bytes, parse_duration
from moonpool.pool.results import TaskInfo, TaskOutcome, task_figures

if TYPE_CHECKING:
    from moonpool.pool.pool import Pool
    from moonpool.pool.tasks import Task

LOOK_S = 0.2
WELL = (TaskOutcome.DONE, TaskOutcome.ALREADY)


def add_task_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("keys", nargs="*", metavar="key")
    parser.add_argument("--prefix", help="every object whose key starts with it")
    parser.add_argument(
        "--deadline", metavar="TIME", default="60s", help="the task ends after so long (60s)"
    )
    parser.add_argument(
        "--no-wait", action="store_true", help="only begin it; `moonpool task ID` shows the rest"
    )
    add_client_options(parser)


def named_keys(args: argparse.Namespace, pool: Pool) -> list[bytes]:
    """Raises BadInput when there are none or too many."""
    from moonpool.pool.inputs import BATCH_KEYS_MAX

    if bool(args.keys) == bool(args.prefix):
        raise BadInput("give keys or --prefix, one of the two")
    if args.keys:
        keys = [key.encode() for key in args.keys]
    else:
        keys = [one.key for one in pool.list(args.prefix)]
    if not 0 < len(keys) <= BATCH_KEYS_MAX:
        raise BadInput(f"{len(keys)} objects; a task takes 1 to {BATCH_KEYS_MAX}")
    return keys


def follow(task: Task, args: argparse.Namespace, output: Output) -> int:
    """Show how it goes on, until it is over."""
    info = task.info()
    if not args.no_wait:
        until = time.monotonic() + parse_duration(args.deadline) + 1.0
        with progress(info.kind, info.total) as advance:
            seen = 0
            while info.running and time.monotonic() < until:
                advance(info.done + info.failed - seen)
                seen = info.done + info.failed
                time.sleep(LOOK_S)
                info = task.info()
    return show(task, info, output)


def show(task: Task, info: TaskInfo, output: Output) -> int:
    """The task in a line, and each key that is not as asked for."""
    output.result(record_of(info), summary(info))
    rest = [(key, one) for key, one in task.results() if one not in WELL]
    for key, outcome in rest if not info.running else []:
        record = {"task": info.id, "key": key_text(key), "outcome": outcome.value}
        output.result(record, f"  {key_text(key)}: {outcome.value}")
    if rest and info.running:
        counts = Counter(one.value for _, one in rest)
        output.text("  " + ", ".join(f"{count:,} {what}" for what, count in counts.items()))
    return EXIT_OK if info.ok or info.running else EXIT_FAILED


def record_of(info: TaskInfo) -> dict[str, object]:
    return {"task": info.id, **task_figures(info)}


def summary(info: TaskInfo) -> str:
    if not info.kind:
        why = {
            "lost": "begun under an earlier master, which took it along; begin it anew",
            "unknown": "no such task, or it ended long ago",
        }
        return f"{info.id}: {why.get(info.state.value, info.state.value)}"
    where = f" from {info.source}" if info.source else ""
    where += f" to {info.target}" if info.target else ""
    return (
        f"{info.id}: {info.kind}{where}: {info.state.value}, {info.done:,} of {info.total:,} done, "
        f"{info.failed:,} not, {format_bytes(info.size)}"
    )
