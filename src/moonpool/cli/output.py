"""What commands print: results on stdout, everything else on stderr.

With --json stdout carries one JSON object per line and nothing else, errors included.
"""

import sys
from collections.abc import Mapping
from typing import IO

import msgspec

from moonpool.core.errors import MoonpoolError


class Output:
    """Where a command's words go. A result has a record for machines and a text for people."""

    def __init__(self, as_json: bool, out: IO[str] | None = None, err: IO[str] | None = None):
        self.as_json = as_json
        self._out = out
        self._err = err

    def result(self, record: Mapping[str, object], text: str) -> None:
        """One line on stdout: `record` as JSON with --json, else `text`."""
        line = msgspec.json.encode(record).decode() if self.as_json else text
        print(line, file=self._out or sys.stdout, flush=True)

    def text(self, text: str) -> None:
        """A line of stdout for people only; headings and closing sentences."""
        if not self.as_json:
            print(text, file=self._out or sys.stdout, flush=True)

    def note(self, text: str) -> None:
        """A line about the work on stderr."""
        print(text, file=self._err or sys.stderr, flush=True)

    def error(self, error: MoonpoolError) -> None:
        """Why the command failed, and for programs the code of the error class."""
        if self.as_json:
            self.result({"error": error.code, "message": str(error)}, "")
        self.note(f"moonpool: {error}")
