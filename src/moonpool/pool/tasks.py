"""Tasks of the blocking pool: copies, moves and clearings that the master does by itself."""

from __future__ import annotations

from collections.abc import Sequence

from moonpool.pool import protocol_tasks
from moonpool.pool.inputs import Key, as_keys
from moonpool.pool.results import TaskInfo, TaskInfos, TaskOutcomes
from moonpool.pool.shell import Shell

DEADLINE_S = 60.0


class Task:
    """A task by its id. It goes on without this object, this client and its connection; it ends
    with its deadline at the latest, or with the master, which is said (state `lost`)."""

    def __init__(self, shell: Shell, id_: str, timeout_s: float) -> None:
        self._shell = shell
        self._timeout_s = timeout_s
        self.id = id_

    def info(self, *, timeout_s: float | None = None) -> TaskInfo:
        return self._shell.run(
            lambda context: protocol_tasks.ask_task(context, self.id), self._timeout(timeout_s)
        )

    def wait(self, *, timeout_s: float | None = None) -> TaskInfo:
        """Until it is over or time is up, whichever comes first: look at the answer's state."""
        return self._shell.run(
            lambda context: protocol_tasks.wait_for_task(context, self.id),
            self._timeout(timeout_s),
        )

    def cancel(self, *, timeout_s: float | None = None) -> TaskInfo:
        """What is on its way still arrives; no more is begun. What was done stays."""
        return self._shell.run(
            lambda context: protocol_tasks.ask_task(context, self.id, True),
            self._timeout(timeout_s),
        )

    def results(self, *, timeout_s: float | None = None) -> TaskOutcomes:
        """What became of each key, so far; empty of a task that is lost or unknown."""
        return self._shell.run(
            lambda context: protocol_tasks.task_results(context, self.id),
            self._timeout(timeout_s),
        )

    def _timeout(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s


class TaskCalls:
    """Part of Pool."""

    _shell: Shell
    _timeout_s: float

    def copy(
        self,
        keys: Sequence[Key],
        to: str,
        *,
        deadline_s: float = DEADLINE_S,
        timeout_s: float | None = None,
    ) -> Task:
        """Have a copy of each object made on node `to`; from then on one more is wanted of it.
        Copies evict nothing. Returns once the master has taken the task (`deadline_s` is its own).

        Raises BadInput (no such node), NotReady (too many tasks run), Refused (a tenant's token).
        """
        return self._begin("copy", keys, to, "", deadline_s, timeout_s)

    def move(
        self,
        keys: Sequence[Key],
        to: str,
        *,
        source: str = "",
        deadline_s: float = DEADLINE_S,
        timeout_s: float | None = None,
    ) -> Task:
        """Have each object's copy on node `source` (empty: one that is there) taken to node `to`:
        readable throughout, given up at the source once the copy counts. As `copy` otherwise."""
        return self._begin("move", keys, to, source, deadline_s, timeout_s)

    def clear(
        self,
        keys: Sequence[Key],
        source: str,
        *,
        deadline_s: float = DEADLINE_S,
        timeout_s: float | None = None,
    ) -> Task:
        """Have the copies on node `source` given up, never the only one that can be read; one less
        is wanted of each from then on. To be rid of an object altogether, `remove` it."""
        return self._begin("clear", keys, "", source, deadline_s, timeout_s)

    def task(self, id_: str) -> Task:
        """A task that anybody has begun, by its id."""
        return Task(self._shell, id_, self._timeout_s)

    def tasks(self, *, timeout_s: float | None = None) -> TaskInfos:
        """Those that run, and those that ended in the last ten minutes (256 at most)."""
        timeout = self._timeout_s if timeout_s is None else timeout_s
        return self._shell.run(protocol_tasks.list_tasks, timeout)

    def _begin(
        self,
        kind: str,
        keys: Sequence[Key],
        target: str,
        source: str,
        deadline_s: float,
        timeout_s: float | None,
    ) -> Task:
        call = protocol_tasks.new_task(kind, as_keys(keys), target, source, deadline_s)
        timeout = self._timeout_s if timeout_s is None else timeout_s
        info = self._shell.run(lambda context: protocol_tasks.begin_task(context, call), timeout)
        return self.task(info.id)
