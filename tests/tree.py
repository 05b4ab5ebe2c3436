"""The repository as the house-rule tests see it."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "moonpool"
_SKIPPED = {"build", "dist", "__pycache__", "demo-out"}
_TEXTS = {".py", ".pyi", ".cpp", ".hpp", ".md", ".toml", ".txt", ".json", ".yml", ".yaml", ".cfg"}


def package_files() -> list[Path]:
    """The Python files of the package, sorted."""
    return sorted(PACKAGE.rglob("*.py"))


def text_files() -> list[Path]:
    """Everything people read or write in the repository, build products left out."""
    return sorted(_texts(ROOT))


def _texts(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        hidden = path.name.startswith(".") and path.name != ".ci"
        if hidden or path.name in _SKIPPED or path.is_symlink():
            continue
        if path.is_dir():
            yield from _texts(path)
        elif path.suffix in _TEXTS or not path.suffix:
            yield path


def module_name(path: Path) -> str:
    """'moonpool.core.units' of its path."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
