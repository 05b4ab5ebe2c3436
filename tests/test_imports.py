"""Imports go downward only (docs/architecture.md), and heavy ones only where they are needed."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tree import PACKAGE, ROOT, module_name, package_files, parse

# A room may import rooms of a lower rank, never one of its own rank.
RANKS = {
    "core": 0,
    "transfer": 1,
    "pool": 2,
    "cache": 3,
    "router": 3,
    "sparse": 3,
    "planner": 4,
    "engine": 5,
    "connectors": 6,
    "bench": 7,
    "dashboard": 7,
    "cli": 8,  # starts the other two
}
# Below every room: the compiled core, and the release number in the package itself.
GROUND = {"moonpool", "moonpool._core"}
HEAVY = {
    "aiohttp",
    "etcd3",
    "flashinfer",
    "gguf",
    "httptools",
    "jinja2",
    "lmcache",
    "matplotlib",
    "mooncake",
    "nixl",
    "opentelemetry",
    "redis",
    "rich",
    "safetensors",
    "sglang",
    "starlette",
    "tokenizers",
    "torch",
    "transformers",
    "triton",
    "uvicorn",
    "uvloop",
    "vllm",
    "zmq",
}
TORCH_FREE = ("core", "transfer", "pool")
# Subclasses of an engine's own classes: only that engine imports them, and only after its version
# was looked at.
FACES = {"connector", "engine_types", "face", "pd_connector"}
# Here a heavy package is the subject: imported at the top, but these files only inside functions.
HOMES = {
    "torch": ("moonpool.engine.model", "moonpool.sparse.training."),
    "triton": ("moonpool.sparse.gpu.kernel",),
}


class Imported(NamedTuple):
    module: str
    line: int
    at_top: bool


def imports_of(tree: ast.Module, name: str = "") -> Iterator[Imported]:
    """Each module a file imports; `at_top` when that happens as the file itself is imported."""
    late = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        or (isinstance(outer, ast.If) and "TYPE_CHECKING" in ast.dump(outer.test))
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Imported(alias.name, node.lineno, id(node) not in late)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: write imports absolutely"
            module = node.module or ""
            at_top = id(node) not in late
            if module == "moonpool":  # from moonpool import pool, _core, __version__
                for alias in node.names:
                    yield Imported(f"moonpool.{alias.name}", node.lineno, at_top)
            else:
                yield Imported(module, node.lineno, at_top)


def room_of(module: str) -> str | None:
    """'core' for moonpool.core.units; None for what is no room of ours."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "moonpool" else None


def wrong_direction(room: str, module: str) -> bool:
    """True if a file of `room` must not import `module`."""
    other = room_of(module)
    if other is None or module in GROUND or other.startswith("__") or other == room:
        return False
    return other not in RANKS or RANKS[other] >= RANKS[room]


def is_heavy(module: str, name: str) -> bool:
    """Whether the file `name` must not import `module` at its top."""
    package = module.split(".")[0]
    for subject, homes in HOMES.items():
        if package == subject or module.startswith(homes):
            return not name.startswith(homes)
    return package in HEAVY


ROOM_FILES = [path for path in package_files() if path.parent != PACKAGE]


@pytest.mark.parametrize("path", ROOM_FILES, ids=module_name)
def test_direction(path: Path) -> None:
    name = module_name(path)
    room = room_of(name)
    assert room in RANKS, f"{name}: a new room needs a rank here and a line in the architecture"
    wrong = [i for i in imports_of(parse(path), name) if wrong_direction(room, i.module)]
    assert not wrong, f"{path.relative_to(ROOT)} imports upward or sideways: {wrong}"


@pytest.mark.parametrize("path", package_files(), ids=module_name)
def test_heavy_imports_stay_in_functions(path: Path) -> None:
    name = module_name(path)
    found = list(imports_of(parse(path), name))
    allowed = {name.split(".")[2]} if is_face(name) else set()
    tops = [i for i in found if i.at_top and i.module.split(".")[0] not in allowed]
    heavy = [i for i in tops if is_heavy(i.module, name)]
    assert not heavy, f"{path.relative_to(ROOT)}: move into the function that needs it: {heavy}"
    if room_of(name) in TORCH_FREE:
        assert not [i for i in found if i.module.split(".")[0] == "torch"], name


def is_face(name: str) -> bool:
    """True for moonpool.connectors.ENGINE.connector and its like: they may import ENGINE."""
    parts = name.split(".")
    return len(parts) == 4 and parts[1] == "connectors" and parts[3] in FACES


def test_no_other_file_imports_a_face_at_the_top() -> None:
    for path in package_files():
        name = module_name(path)
        tops = {i.module for i in imports_of(parse(path), name) if i.at_top}
        assert is_face(name) or not any(map(is_face, tops)), name


@pytest.mark.parametrize(
    ("room", "module", "wrong"),
    [
        ("pool", "moonpool.core.errors", False),
        ("pool", "moonpool.pool.results", False),
        ("core", "moonpool._core", False),
        ("core", "moonpool.__version__", False),
        ("core", "moonpool.pool", True),
        ("router", "moonpool.cache.radix", True),
        ("transfer", "moonpool.unheard_of", True),
        ("core", "msgspec", False),
    ],
)
def test_the_rule_itself(room: str, module: str, wrong: bool) -> None:
    assert wrong_direction(room, module) is wrong


@pytest.mark.parametrize(
    ("module", "name", "heavy"),
    [
        ("torch.nn", "moonpool.engine.core", True),
        ("torch.nn", "moonpool.engine.model.llama", False),
        ("moonpool.engine.model.llama", "moonpool.engine.core", True),
        ("moonpool.engine.model.llama", "moonpool.engine.model.runner", False),
        ("moonpool.engine.request", "moonpool.engine.core", False),
        ("triton.language", "moonpool.sparse.gpu.kernel", False),
        ("triton", "moonpool.sparse.gpu.rows", True),
        ("moonpool.sparse.gpu.kernel", "moonpool.sparse.gpu.rows", True),
        ("vllm", "moonpool.engine.model.llama", True),
    ],
)
def test_what_is_heavy(module: str, name: str, heavy: bool) -> None:
    assert is_heavy(module, name) is heavy


def test_what_counts_as_the_top_of_a_file() -> None:
    source = (
        "import a\n"
        "def f() -> None:\n    import b\n"
        "if TYPE_CHECKING:\n    import c\n"
        "class C:\n    from moonpool import d\n"
    )
    tops = {i.module: i.at_top for i in imports_of(ast.parse(source))}
    assert tops == {"a": True, "b": False, "c": False, "moonpool.d": True}
