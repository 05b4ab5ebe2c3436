"""From a command line to an exit status: 0 ok, 1 failed, 2 bad usage, 130 interrupted."""

import os
import platform
import sys
from collections.abc import Sequence

from moonpool.cli.output import Output
from moonpool.cli.parser import EXIT_FAILED, EXIT_OK, EXIT_USAGE, Parser
from moonpool.cli.registry import COMMANDS, load_command
from moonpool.core.errors import BadInput, MoonpoolError, did_you_mean

EXIT_INTERRUPTED = 128 + 2  # what a shell reports for a program ended by Ctrl-C


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; `argv` without the program's name, sys.argv when not given."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return EXIT_OK if words else EXIT_USAGE
    if words[0] in ("-V", "--version"):
        print(version_line())
        return EXIT_OK
    if words[0] not in COMMANDS:
        kind = "option" if words[0].startswith("-") else "command"
        known = ["--help", "--version"] if kind == "option" else list(COMMANDS)
        hint = did_you_mean(words[0], known)
        print(
            f"moonpool: unknown {kind} '{words[0]}'.{hint}\nSee 'moonpool --help'.", file=sys.stderr
        )
        return EXIT_USAGE
    return run_command(words[0], words[1:])


def run_command(name: str, words: Sequence[str]) -> int:
    """Run command `name` of COMMANDS, translating how it ends into an exit status."""
    command = load_command(name)
    args = command_parser(name).parse(words)
    output = Output(args.json)
    try:
        return command.run(args, output)
    except MoonpoolError as error:
        output.error(error)
        return EXIT_USAGE if isinstance(error, BadInput) else EXIT_FAILED
    except KeyboardInterrupt:
        output.note("moonpool: interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Our reader (head, say) has enough; keep the interpreter from flushing into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def command_parser(name: str) -> Parser:
    """The parser of one command, with the options that every command has."""
    command = load_command(name)
    summary = COMMANDS[name]
    parser = Parser(f"moonpool {name}", summary[0].upper() + summary[1:] + ".", command.EXAMPLES)
    command.configure(parser)
    shared = parser.add_argument_group("every command")
    shared.add_argument("--json", action="store_true", help="one JSON object per line on stdout")
    shared.add_argument("--config", metavar="FILE", help="TOML file; MOONPOOL_CONFIG otherwise")
    return parser


def usage() -> str:
    """The page of `moonpool --help`; imports no command."""
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
    return (
        "usage: moonpool COMMAND [options]\n\n"
        "A disaggregated KV cache for LLM serving.\n\n"
        f"commands:\n{lines}\n\n"
        "options:\n  --help, --version\n\n"
        "'moonpool COMMAND --help' shows its options and examples.\n"
        "Exit status: 0 ok, 1 failed, 2 bad usage."
    )


def version_line() -> str:
    """Release, protocol and Python, what a bug report needs first."""
    from moonpool import __version__
    from moonpool.core.wire import PROTOCOL_VERSION

    python = platform.python_version()
    return f"moonpool {__version__}, protocol {PROTOCOL_VERSION}, Python {python}"
