"""From command lines to exit statuses; what is refused and how."""

import argparse
import shlex
import subprocess
import sys
import types

import pytest

from moonpool import __version__
from moonpool.cli import app, main
from moonpool.cli.app import command_parser
from moonpool.cli.output import Output
from moonpool.cli.registry import COMMANDS, load_command
from moonpool.core.errors import BadKey, PoolFull


class Probe(types.SimpleNamespace):
    """A command that ends as told."""

    EXAMPLES = ("moonpool probe --depth 3  # look deeper",)
    end: BaseException | int = 0

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--depth", type=int)

    def run(self, args: argparse.Namespace, output: Output) -> int:
        if isinstance(self.end, BaseException):
            raise self.end
        return self.end


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Probe:
    command = Probe()
    monkeypatch.setitem(COMMANDS, "probe", "try things")
    monkeypatch.setattr(app, "load_command", lambda name: command)
    return command


def exit_status(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as end:
        assert isinstance(end.code, int)
        return end.code


@pytest.mark.parametrize(
    ("end", "status"),
    [(0, 0), (1, 1), (PoolFull("x"), 1), (BadKey("x"), 2), (KeyboardInterrupt(), 130)],
)
def test_how_a_command_ends(probe: Probe, end: BaseException | int, status: int) -> None:
    probe.end = end
    assert main(["probe"]) == status


def test_an_error_is_one_line(probe: Probe, capsys: pytest.CaptureFixture[str]) -> None:
    probe.end = PoolFull("no room for 3 keys; retry")
    main(["probe"])
    assert capsys.readouterr() == ("", "moonpool: no room for 3 keys; retry\n")


def test_an_error_is_an_object_with_json(probe: Probe, capsys: pytest.CaptureFixture[str]) -> None:
    probe.end = PoolFull("no room")
    main(["probe", "--json"])
    assert capsys.readouterr().out == '{"error":"pool_full","message":"no room"}\n'


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["prob"], "unknown command 'prob'. Did you mean 'probe'?"),
        (["--verson"], "unknown option '--verson'. Did you mean '--version'?"),
        (["probe", "--dept", "3"], "unknown option '--dept'. Did you mean '--depth'?"),
        (["probe", "--dept=3"], "unknown option '--dept'. Did you mean '--depth'?"),
        (["probe", "what"], "unknown argument 'what'."),
        (["probe", "--depth", "x"], "invalid int value: 'x'"),
    ],
)
def test_bad_usage(
    probe: Probe, capsys: pytest.CaptureFixture[str], words: list[str], hint: str
) -> None:
    assert exit_status(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert hint in err
    assert "--help" in err


def test_nothing_asked_shows_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: moonpool COMMAND" in capsys.readouterr().out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


def test_version_names_release_and_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"moonpool {__version__}, protocol 1, Python 3.")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"usage: moonpool {name}" in out
    assert "examples:" in out and "--json" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_is_a_command_line_that_parses(name: str) -> None:
    examples = load_command(name).EXAMPLES
    assert examples
    for line in examples:
        words = shlex.split(line, comments=True)
        assert words[:2] == ["moonpool", name]
        command_parser(name).parse(words[2:])


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from moonpool.cli import main; main(['--help']);"
        "heavy = {'numpy', 'asyncio', 'uvloop', 'rich', 'moonpool._core'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_has_enough_is_no_crash() -> None:
    code = "import sys; from moonpool.cli import main; sys.exit(main(['config']))"
    script = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_python_dash_m() -> None:
    line = [sys.executable, "-m", "moonpool", "--version"]
    assert subprocess.run(line, capture_output=True, text=True).stdout.startswith("moonpool ")
