"""House rules of the repository that no other tool checks."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import moonpool
from moonpool.core.sections import SCHEMA
from tests.tree import ROOT, package_files, parse, text_files

LINES_MAX = 400
# Longer by nature; each with its reason.
LONG_FILES: dict[str, str] = {}

MACHINE_PATH = re.compile(r"(?<![\w.~:/-])/(work|root|home|Users)/\w")
LOOSE_END = re.compile(r"\b(TODO|FIXME|XXX)\b(?!.*#\d+)")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def hits(pattern: re.Pattern[str]) -> list[str]:
    """'file:line' of every match in the repository, this file left out."""
    found = []
    for path in text_files():
        if path == Path(__file__):
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        found += [
            f"{relative(path)}:{n}" for n, line in enumerate(lines, 1) if pattern.search(line)
        ]
    return found


def test_no_paths_of_a_machine() -> None:
    assert hits(MACHINE_PATH) == []


def test_every_loose_end_names_its_issue() -> None:
    assert hits(LOOSE_END) == []


@pytest.mark.parametrize("path", package_files(), ids=relative)
def test_files_stay_readable(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LINES_MAX or relative(path) in LONG_FILES, f"{lines} lines: split by concept"


def test_exceptions_are_still_needed() -> None:
    for name in LONG_FILES:
        assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) > LINES_MAX, name


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    latest = re.search(r"^## \[(\d+\.\d+\.\d+)\]", changelog, re.MULTILINE)
    assert latest is not None
    assert latest.group(1) == project["version"] == moonpool.__version__


def test_ci_runs_checks_and_tests() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    run = [line for line in script.splitlines() if line.startswith("make ")]
    assert run == ["make check test test-engines"]


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    required = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    required += [one for extra in extras.values() for one in extra]
    reasons = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    names = {re.split(r"[\[<>=~!; ]", one)[0] for one in required}
    assert [name for name in sorted(names) if f"`{name}`" not in reasons] == []


def test_every_setting_is_read() -> None:
    """A setting that nothing reads is a promise that nothing keeps."""
    outside = [path for path in package_files() if path.parent.name != "core"]
    code = "\n".join(path.read_text(encoding="utf-8") for path in outside)
    read_as = {"dir": "directory"}
    settings = [item for section in SCHEMA.sections.values() for item in section.settings()]
    unread = [i.path for i in settings if f".{read_as.get(i.name, i.name)}" not in code]
    assert unread == []


UNSAFE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml"}


def test_no_code_runs_what_came_over_a_wire_or_off_a_disk() -> None:
    """R92: neither imported, nor eval and exec called, anywhere in the package."""
    found = [
        f"{relative(path)}: {what}"
        for path in package_files()
        for node in ast.walk(parse(path))
        if (what := unsafe(node))
    ]
    assert found == []


def unsafe(node: ast.AST) -> str:
    """What this part of a program would run, or ''."""
    match node:
        case ast.Import(names=names):
            return next((one.name for one in names if one.name in UNSAFE), "")
        case ast.ImportFrom(module=str(module)) if module in UNSAFE:
            return module
        case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
            return name
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load")):
            return "torch.load"
        case ast.keyword(arg="allow_pickle", value=ast.Constant(value=False)):
            return ""
        case ast.keyword(arg="allow_pickle"):
            return "allow_pickle"
    return ""


def test_changelog_keeps_its_form() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    heads = {line for line in lines if line.startswith("### ")}
    assert heads <= {"### Added", "### Changed", "### Fixed"}


def test_links_between_the_docs_lead_somewhere() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{relative(page)}: {target}")
    assert broken == []
