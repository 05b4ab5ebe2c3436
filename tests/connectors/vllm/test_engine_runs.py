"""What `make test-engines` promises, held without running it."""

import re
import tomllib

from moonpool.connectors.vllm.versions import SUPPORTED
from tests.engines.skips import EXPECTED
from tests.tree import ROOT

REQUIREMENTS = (ROOT / "tests/engines/requirements.txt").read_text(encoding="utf-8")


def test_everything_is_pinned_and_vllm_is_the_supported_one() -> None:
    lines = [line for line in REQUIREMENTS.splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w.\-]+==\S+", line)] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (version,) = re.findall(r"^VLLM := (\d+\.\d+)\.\d+$", makefile, re.MULTILINE)
    assert version in SUPPORTED


def test_what_breaks_vllm_on_a_cpu_is_not_installed() -> None:
    """Nor what it does not need: the list is the whole of it, so pip is to add nothing."""
    assert not re.search(r"^(torchvision|torchaudio|torchcodec|triton)==", REQUIREMENTS, re.M)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "pip install -q --no-deps -r tests/engines/requirements.txt" in makefile


def test_nothing_of_the_recipe_is_allowed_to_fail() -> None:
    """Whatever cannot be installed or run ends `make` with an error: no `-` before a command, no
    `||` after one, but for the environment's own making."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile[makefile.index("test-engines: $(") : makefile.index("## test-nixl")]
    lines = [line.strip() for line in recipe.splitlines() if line.startswith("\t")]
    assert len(lines) > 7
    assert [line for line in lines if line.startswith("-") or "||" in line] == [
        "test -x $(ENGINES_VENV)/bin/python || $(PYTHON) -m venv $(ENGINES_VENV)"
    ]
    assert not re.search(
        r"skip|xfail|importorskip", (ROOT / "tests/engines/vllm_rig.py").read_text()
    )


def test_the_package_does_not_need_the_engine() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    assert not [line for line in lines if "vllm" in line]


def test_expected_skips_have_reasons() -> None:
    """None for now: whoever adds one changes this line and says why in the list."""
    assert EXPECTED == {}
