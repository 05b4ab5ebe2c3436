"""What the docs say is run: python blocks in order, and every command line through its parser."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moonpool.cli.app import command_parser
from moonpool.cli.registry import COMMANDS
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.pool.cluster import Cluster, local_directory
from tests.tree import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = [ROOT / "README.md", ROOT / "docs" / "api.md"]
SHOWN_ADDRESS = "127.0.0.1:7400"
MEMORY = 32 << 20

PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# The start of a line of a code block, perhaps with a prompt, variables or a path before it.
COMMAND = re.compile(r"^(?: {4,}|\$ )?(?:\w+=\S+ )*(?:\S*/)?moonpool (\w.*)$", re.MULTILINE)
FILE = re.compile(r"`((?:docs|tests|native|src|bench|core|pool|transfer|cli)/[\w./*-]+)`")
INLINE = re.compile(r"`moonpool (\w+)[^`]*`")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture
def address() -> Iterator[str]:
    with local_directory("docs") as directory:
        node = NodeConfig(name="node0", memory=MEMORY, dir=str(directory), persist=False)
        with Cluster(MasterConfig(port=0, nodes_expected=1), [node]) as cluster:
            yield cluster.address


@pytest.mark.parametrize("page", RUN, ids=relative)
def test_snippets_run(page: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONPOOL_MASTER", address)
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": relative(page)}
    blocks = list(PYTHON.finditer(text))
    assert blocks, f"{relative(page)} shows no python"
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        source = block.group(1).replace(SHOWN_ADDRESS, address)
        exec(compile("\n" * line + source, relative(page), "exec"), names)


def command_lines() -> list[tuple[str, str]]:
    """(page:line, words after `moonpool`) of every command line shown in a code block."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in COMMAND.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append((f"{relative(page)}:{line}", match.group(1)))
    return found


@pytest.mark.parametrize(("place", "words"), command_lines(), ids=lambda value: str(value))
def test_command_lines_parse(place: str, words: str) -> None:
    name, *rest = shlex.split(words.rstrip("&"), comments=True)
    assert name in COMMANDS, place
    if "--help" not in rest:
        command_parser(name).parse(rest)


def test_commands_named_in_the_text_exist() -> None:
    unknown = []
    for page in PAGES:
        for name in INLINE.findall(page.read_text(encoding="utf-8")):
            if name not in COMMANDS and name != "COMMAND":
                unknown.append(f"{relative(page)}: moonpool {name}")
    assert unknown == []


def test_files_named_in_the_text_exist() -> None:
    homes = (ROOT, ROOT / "src" / "moonpool")
    missing = []
    for page in PAGES:
        for name in FILE.findall(page.read_text(encoding="utf-8")):
            if not any(list(home.glob(name)) for home in homes):
                missing.append(f"{relative(page)}: {name}")
    assert missing == []


def test_every_command_is_shown() -> None:
    shown = {words.split()[0] for _, words in command_lines()}
    assert sorted(set(COMMANDS) - shown) == []
