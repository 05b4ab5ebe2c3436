"""One tree of errors, the one drawn at the top of the file."""

import pickle
import re
from pathlib import Path

import pytest

from moonpool.core import errors
from tests.tree import ROOT


def tree_lines(cls: type[object], depth: int = 0) -> list[tuple[int, str]]:
    lines = [(depth, cls.__name__)]
    for child in cls.__subclasses__():
        lines += tree_lines(child, depth + 1)
    return lines


def all_errors() -> list[type[errors.MoonpoolError]]:
    return [getattr(errors, name) for _, name in tree_lines(errors.MoonpoolError)]


def test_the_drawn_tree_is_the_real_one() -> None:
    drawn = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^((?:[│├└─ ]{4})*)([A-Z]\w+)( \(\w+\))?$", line)
        if match:
            drawn.append((len(match.group(1)) // 4, match.group(2)))
    assert drawn == tree_lines(errors.MoonpoolError)


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.BadConfig, ValueError),
        (errors.DeadlineExceeded, TimeoutError),
        (errors.Unreachable, ConnectionError),
        (errors.MissingExtra, ImportError),
    ],
)
def test_builtin_parents(cls: type, builtin: type) -> None:
    assert issubclass(cls, builtin)


@pytest.mark.parametrize("cls", all_errors())
def test_message_and_pickle(cls: type[errors.MoonpoolError]) -> None:
    error = cls("what happened")
    assert str(error) == "what happened"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == "what happened"


@pytest.mark.parametrize("cls", all_errors())
def test_code_names_the_class_on_both_ends(cls: type[errors.MoonpoolError]) -> None:
    assert type(errors.error_from_code(cls.code, "m")) is cls


def test_codes_are_snake_case() -> None:
    assert errors.PoolFull.code == "pool_full"
    assert errors.MoonpoolError.code == "moonpool_error"


def test_unknown_code_is_shown() -> None:
    assert str(errors.error_from_code("from_the_future", "boom")) == "from_the_future: boom"


def test_did_you_mean() -> None:
    assert errors.did_you_mean("memry", ["memory", "master"]) == " Did you mean 'memory'?"
    assert errors.did_you_mean("xyzzy", ["memory", "master"]) == ""


def test_missing_extra_names_the_pip_extra() -> None:
    assert "pip install 'moonpool[plot]'" in str(errors.missing_extra("--plot", "plot"))


def test_every_error_is_used() -> None:
    code = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "src" / "moonpool").rglob("*.py")
        if path != Path(errors.__file__)
    )
    leaves = [cls.__name__ for cls in all_errors() if not cls.__subclasses__()]
    unused = [name for name in leaves if not re.search(rf"\b{name}\b", code)]
    assert unused == []
