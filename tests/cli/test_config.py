"""`moonpool config` and options made from sections."""

import argparse
import json
from pathlib import Path

import pytest

from moonpool.cli import main
from moonpool.cli.options import add_settings, load_settings
from moonpool.core.errors import BadConfig
from moonpool.core.sections import SCHEMA, MasterConfig, NodeConfig


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for section in SCHEMA.sections.values():
        for item in section.settings():
            for name in item.env_names:
                monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("MOONPOOL_CONFIG", raising=False)


def node(words: list[str], env: dict[str, str] | None = None) -> NodeConfig:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    add_settings(parser, NodeConfig)
    return load_settings(parser.parse_args(words), NodeConfig, env or {}).value


def test_every_value_and_its_origin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "moonpool.toml"
    path.write_text("[node]\nrows = 9\n", encoding="utf-8")
    monkeypatch.setenv("MOONPOOL_NODE_MEMORY", "2GiB")
    assert main(["config", "--json", "--config", str(path)]) == 0
    rows = {row["setting"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows["node.memory"]["value"] == 2 << 30
    assert rows["node.memory"]["origin"] == "environment MOONPOOL_NODE_MEMORY"
    assert rows["node.rows"]["origin"] == f"file {path}"
    assert rows["client.verify"] == {
        "setting": "client.verify",
        "value": True,
        "unit": "",
        "origin": "default",
    }


def test_one_section_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "up"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("[up]\n")
    assert "1 GiB" in out and "[node]" not in out


def test_a_token_is_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOONPOOL_TOKEN", "s3cret")
    for words in (["config"], ["config", "--json"]):
        assert main(words) == 0
        assert "s3cret" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [("MOONPOOL_NODE_MEMRY", "1", "MOONPOOL_NODE_MEMORY"), ("MOONPOOL_UP_NODES", "0", "up.nodes")],
)
def test_a_wrong_environment_is_bad_usage(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    hint: str,
) -> None:
    monkeypatch.setenv(name, value)
    assert main(["config"]) == 2
    assert hint in capsys.readouterr().err


def test_an_unknown_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "mster"]) == 2
    assert "Did you mean 'master'?" in capsys.readouterr().err


def test_markdown_is_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--markdown"]) == 0
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert capsys.readouterr().out == page.read_text(encoding="utf-8")


def test_options_beat_the_environment() -> None:
    env = {"MOONPOOL_NODE_MEMORY": "1MiB"}
    assert node(["--memory", "2MiB"], env).memory == 2 << 20
    assert node([], env).memory == 1 << 20


def test_flags_have_both_forms() -> None:
    assert node([]).persist
    assert not node(["--no-persist"]).persist
    assert node(["--persist"], {"MOONPOOL_NODE_PERSIST": "off"}).persist


def test_option_names_are_written_with_dashes() -> None:
    assert node(["--heartbeat-ms", "2s"]).heartbeat_ms == 2000


def test_a_bad_option_names_itself() -> None:
    with pytest.raises(BadConfig, match=r"node\.memory = 'lots' \(command line --memory\)"):
        node(["--memory", "lots"])


def test_settings_can_be_left_out() -> None:
    parser = argparse.ArgumentParser()
    add_settings(parser, MasterConfig, skip={"rows_max"})
    assert "--rows-max" not in parser.format_help()
    assert "--node-lease-ms TIME" in parser.format_help()
