"""What packages offer is written down; a change of it is a decision, not an accident."""

import importlib

import pytest

from tests.public_surface import names_of, packages, surface
from tests.tree import ROOT

PINNED = ROOT / "tests" / "golden" / "public_surface.txt"


@pytest.mark.parametrize("package", packages())
def test_names_are_sorted_and_there(package: str) -> None:
    names = names_of(package)
    assert names == sorted(set(names))
    module = importlib.import_module(package)
    assert [name for name in names if not hasattr(module, name)] == []


def test_the_surface_is_the_pinned_one() -> None:
    hint = "if meant: python -m tests.public_surface > tests/golden/public_surface.txt"
    assert surface() == PINNED.read_text(encoding="utf-8"), hint
