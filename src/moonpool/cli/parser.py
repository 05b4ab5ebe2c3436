"""argparse as we want it: complete option names only, 'did you mean', exit status 2."""

import argparse
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

from moonpool.core.errors import did_you_mean

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2


def _formatter(prog: str) -> argparse.RawDescriptionHelpFormatter:
    """Wide enough that most options and their help share a line."""
    width = min(shutil.get_terminal_size().columns, 100)
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=28, width=width)


class Parser(argparse.ArgumentParser):
    """A parser whose complaint about an unknown option names the closest known one."""

    def __init__(self, prog: str, description: str, examples: Iterable[str]) -> None:
        lines = "\n".join(f"  {line}" for line in examples)
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"examples:\n{lines}",
            formatter_class=_formatter,
            allow_abbrev=False,
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The options in `argv`; ends the process with status 2 on anything unknown."""
        args, unknown = self.parse_known_args(argv)
        if unknown:
            word = unknown[0].partition("=")[0]
            kind = "option" if word.startswith("-") else "argument"
            known = self._option_string_actions if kind == "option" else []
            self.error(f"unknown {kind} '{word}'.{did_you_mean(word, known)}")
        return args

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}\nSee '{self.prog} --help'.", file=sys.stderr)
        sys.exit(EXIT_USAGE)
