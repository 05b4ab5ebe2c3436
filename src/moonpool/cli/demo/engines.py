"""Engine processes of the demo: the command a user would type, ended with the demo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Final, Self

from moonpool.core.errors import NotReady
from moonpool.pool.children import first_line, reap, uninterrupted

START_S: Final = 180.0
STOP_S: Final = 10.0
_LOG_TAIL_BYTES: Final = 2000
_CODE: Final = (
    "import sys; from moonpool.pool.process import end_with; from moonpool.cli import main;"
    "end_with(int(sys.argv[1])); sys.exit(main(sys.argv[2:]))"
)


class EngineProcess:
    """`moonpool engine WORDS...` on a free port, alive inside `with`. Raises NotReady.

    It comes up in the background; `port` waits for it, so that several come up together.
    """

    def __init__(self, name: str, words: Sequence[str]) -> None:
        self.name = name
        self._words = list(words)
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to come up."""
        self._port = 0
        self._deadline = time.monotonic() + START_S
        self._log: IO[bytes] = tempfile.TemporaryFile()
        words = ["engine", "--port", "0", "--json", *self._words]
        with uninterrupted():
            # A session of its own: Ctrl-C reaches the demo only, which ends all in order.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CODE, str(os.getpid()), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,
            )

    @property
    def port(self) -> int:
        """Where it listens. Raises NotReady, with its last words, when it does not come up."""
        if not self._port:
            line = first_line(self._process, self._deadline)
            try:
                ready = json.loads(line)
            except ValueError:  # it ended, or its time is up
                ready = {"message": self._log_tail()}
            if "port" not in ready:
                raise NotReady(f"engine {self.name} did not come up: {ready['message']}")
            self._port = int(ready["port"])
        return self._port

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Asked first, killed when it does not go; at once with SIGKILL."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        reap(self._process, time.monotonic() + STOP_S)
        self._log.close()

    def restart(self) -> None:
        """Killed without a chance to say goodbye, and a new process in its place."""
        self.stop(signal.SIGKILL)
        self.start()

    def _log_tail(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_TAIL_BYTES))
        return self._log.read().decode(errors="replace").strip() or "it said nothing"
