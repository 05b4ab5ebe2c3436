"""Tasks as a client asks for them: begun, looked at, waited for. The master does them by itself."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from moonpool.core.errors import BadInput
from moonpool.pool import messages as m
from moonpool.pool.columns import pack_keys, u8, unpack_keys
from moonpool.pool.message_words import TaskKeyStatus, TaskState
from moonpool.pool.operations import answered
from moonpool.pool.protocol import Context, Pause, Protocol, ask
from moonpool.pool.results import TaskInfo, TaskOutcome

DEADLINE_S_MAX = 86_400.0
LOOK_S = 0.1
PAGE_KEYS = 16_384
_OUTCOMES = {status: TaskOutcome[status.name] for status in TaskKeyStatus}


def new_task(
    kind: str, keys: Sequence[bytes], target: str, source: str, deadline_s: float
) -> m.BeginTask:
    """Raises BadInput."""
    for node in (target, source):
        if not isinstance(node, str):
            raise BadInput(f"a node is named by text, not by {type(node).__name__}")
    known = isinstance(deadline_s, int | float) and math.isfinite(deadline_s)
    if not known or not 0 < deadline_s <= DEADLINE_S_MAX:
        raise BadInput(f"deadline_s is 0 to {DEADLINE_S_MAX:.0f} seconds, not {deadline_s!r}")
    deadline_ms = max(1, int(deadline_s * 1000))
    return m.BeginTask(kind, os.urandom(16), pack_keys(keys), target, source, deadline_ms)


def begin_task(context: Context, call: m.BeginTask) -> Protocol[TaskInfo]:
    return _info((yield from ask(context, call)))


def ask_task(context: Context, id_: str, cancel: bool = False) -> Protocol[TaskInfo]:
    return _info((yield from ask(context, m.AskTask(id_, cancel))))


def wait_for_task(context: Context, id_: str) -> Protocol[TaskInfo]:
    """Until it is over, or this call's deadline."""
    while True:
        info = yield from ask_task(context, id_)
        if not info.running or context.left() <= LOOK_S:
            return info
        yield Pause(LOOK_S)


def task_results(context: Context, id_: str) -> Protocol[list[tuple[bytes, TaskOutcome]]]:
    found: list[tuple[bytes, TaskOutcome]] = []
    cursor = 0
    while cursor >= 0:
        reply = yield from ask(context, m.AskTask(id_, False, cursor, PAGE_KEYS))
        answered(reply, m.TaskIs)
        assert isinstance(reply, m.TaskIs)
        outcomes = [_OUTCOMES[TaskKeyStatus(byte)] for byte in u8(reply.status).tolist()]
        found += zip(unpack_keys(reply.keys), outcomes, strict=True)
        cursor = reply.cursor
    return found


def list_tasks(context: Context) -> Protocol[list[TaskInfo]]:
    reply = yield from ask(context, m.ListTasks())
    answered(reply, m.Tasks)
    assert isinstance(reply, m.Tasks)
    return [_info(one) for one in reply.tasks]


def _info(reply: object) -> TaskInfo:
    answered(reply, m.TaskIs)  # type: ignore[arg-type]
    assert isinstance(reply, m.TaskIs)
    return TaskInfo(
        *(reply.id, TaskState(reply.state), reply.kind, reply.target, reply.source),
        *(reply.total, reply.done, reply.failed, reply.size, reply.left_ms / 1000),
    )
