"""docs/configuration.md is what the sections say."""

from pathlib import Path

from moonpool.core.config_page import configuration_page
from moonpool.core.sections import SCHEMA

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_current() -> None:
    current = configuration_page(SCHEMA)
    hint = "run: .venv/bin/moonpool config --markdown > docs/configuration.md"
    assert PAGE.read_text(encoding="utf-8") == current, hint
