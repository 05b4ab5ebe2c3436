"""Where settings come from, and what is refused."""

from pathlib import Path

import pytest

from moonpool.core.config import Schema
from moonpool.core.errors import BadConfig
from moonpool.core.sections import (
    SCHEMA,
    ClientConfig,
    MasterConfig,
    NodeConfig,
    TransferConfig,
    UpConfig,
)


def write(folder: Path, text: str) -> Path:
    path = folder / "moonpool.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults() -> None:
    loaded = SCHEMA.load(NodeConfig)
    assert loaded.value.memory == 1 << 30
    assert set(loaded.origin.values()) == {"default"}


def test_precedence_is_cli_env_file_default(tmp_path: Path) -> None:
    path = write(tmp_path, "[node]\nmemory = '1MiB'\nrows = 7\nslots = 5\n")
    env = {"MOONPOOL_NODE_MEMORY": "2MiB", "MOONPOOL_NODE_ROWS": "8"}
    loaded = SCHEMA.load(NodeConfig, cli={"memory": "3MiB", "name": None}, env=env, file=path)
    value = loaded.value
    assert (value.memory, value.rows, value.slots, value.name) == (3 << 20, 8, 5, "")
    assert loaded.origin["memory"] == "command line --memory"
    assert loaded.origin["rows"] == "environment MOONPOOL_NODE_ROWS"
    assert loaded.origin["slots"] == f"file {path}"
    assert loaded.origin["name"] == "default"


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    path = write(tmp_path, "[client]\ntimeout_ms = '2s'\n")
    loaded = SCHEMA.load(ClientConfig, env={"MOONPOOL_CONFIG": str(path)})
    assert loaded.value.timeout_ms == 2000


def test_a_shared_variable_is_weaker_than_the_sections_own() -> None:
    env = {"MOONPOOL_MASTER": "a:1", "MOONPOOL_NODE_MASTER": "b:2"}
    assert SCHEMA.load(NodeConfig, env=env).value.master == "b:2"
    assert SCHEMA.load(ClientConfig, env=env).value.master == "a:1"


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("memory", "1GiB", 1 << 30),
        ("memory", 1 << 21, 1 << 21),
        ("headroom", "16MiB", 16 << 20),
        ("headroom", "auto", "auto"),
        ("heartbeat_ms", "2s", 2000),
        ("heartbeat_ms", "250", 250),
        ("persist", "off", False),
        ("persist", "Yes", True),
        ("labels", "rack=a, zone=b", {"rack": "a", "zone": "b"}),
        ("labels", {"rack": "a"}, {"rack": "a"}),
        ("port", "7401", 7401),
    ],
)
def test_values_are_understood(name: str, raw: object, value: object) -> None:
    assert getattr(SCHEMA.load(NodeConfig, cli={name: raw}).value, name) == value


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("memory", "1G"),
        ("memory", "1KiB"),
        ("memory", "-1"),
        ("headroom", "lots"),
        ("headroom", -1),
        ("heartbeat_ms", "0.5ms"),
        ("heartbeat_ms", "forever"),
        ("persist", "maybe"),
        ("labels", "rack"),
        ("port", "65536"),
        ("port", "x"),
        ("master", "nowhere"),
        ("name", 5),
        ("name", "../../etc/x"),
        ("name", ".hidden"),
        ("name", "x" * 65),
    ],
)
def test_bad_values_name_setting_and_value(name: str, raw: object) -> None:
    with pytest.raises(BadConfig, match=name if name != "master" else "nowhere"):
        SCHEMA.load(NodeConfig, cli={name: raw})


def test_built_in_code_validates_too() -> None:
    assert NodeConfig(memory="2GiB").memory == 2 << 30  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match=r"node\.port = 70000 \(given in code\)"):
        NodeConfig(port=70_000)


def test_unknown_variable_suggests_the_right_one() -> None:
    with pytest.raises(BadConfig, match="Did you mean 'MOONPOOL_NODE_MEMORY'"):
        SCHEMA.load(MasterConfig, env={"MOONPOOL_NODE_MEMRY": "1GiB"})


def test_other_peoples_variables_are_none_of_our_business() -> None:
    SCHEMA.load(MasterConfig, env={"PATH": "/bin", "MOON": "1"})


def test_service_links_of_an_orchestrator_are_ignored() -> None:
    env = {
        "MOONPOOL_MASTER_PORT": "tcp://10.0.0.1:7400",
        "MOONPOOL_MASTER_PORT_7400_TCP_ADDR": "10.0.0.1",
        "MOONPOOL_MASTER_SERVICE_HOST": "10.0.0.1",
        "MOONPOOL_MASTER_SERVICE_PORT_RPC": "7400",
    }
    assert SCHEMA.load(MasterConfig, env=env).value.port == 7400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[nod]\n", "unknown section in .*Did you mean 'node'"),
        ("[node]\nmemry = 1\n", r"unknown setting in \[node\] of .*Did you mean 'memory'"),
        ("node = 1\n", "must be a section"),
        ("[node\n", "not valid TOML"),
        ("[master]\nport = 'x'\n", "master.port"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        SCHEMA.load(MasterConfig, file=write(tmp_path, text))


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="cannot read"):
        SCHEMA.load(MasterConfig, file=tmp_path / "none.toml")


def test_unknown_setting_in_code_suggests_the_right_one() -> None:
    with pytest.raises(BadConfig, match="Did you mean 'memory'"):
        SCHEMA.load(NodeConfig, cli={"memroy": 1})


@pytest.mark.parametrize("section", [MasterConfig, NodeConfig, UpConfig])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gpu-7"])
def test_an_open_door_needs_a_token(
    section: type[MasterConfig | NodeConfig | UpConfig], host: str
) -> None:
    with pytest.raises(BadConfig, match="token"):
        section(host=host)
    assert section(host=host, token="s3cret").host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.0.1"])
def test_loopback_needs_none(host: str) -> None:
    assert MasterConfig(host=host).host == host


def test_a_token_is_never_shown() -> None:
    loaded = SCHEMA.load(MasterConfig, env={"MOONPOOL_TOKEN": "s3cret"})
    assert loaded.value.token == "s3cret"
    assert "s3cret" not in repr(loaded)
    with pytest.raises(BadConfig) as error:
        SCHEMA.load(MasterConfig, cli={"token": ["s3cret"]})
    assert "s3cret" not in str(error.value)


def test_describe_shows_value_and_origin() -> None:
    loaded = SCHEMA.load(NodeConfig, cli={"memory": "2GiB"})
    rows = {row.setting.name: row for row in loaded.describe()}
    assert rows["memory"].setting.show(rows["memory"].value) == "2 GiB"
    assert rows["memory"].origin == "command line --memory"
    assert rows["headroom"].setting.show(rows["headroom"].value) == "auto"


@pytest.mark.parametrize("section", SCHEMA.sections.values())
def test_every_default_is_valid_and_explained(section: type[MasterConfig]) -> None:
    section()
    for item in section.settings():
        assert item.help.endswith("."), item.path
        assert item.parse(item.default, "default") == item.default


def test_no_two_settings_share_a_variable_of_their_own() -> None:
    names = [item.env_names[0] for s in SCHEMA.sections.values() for item in s.settings()]
    shared = {name for s in SCHEMA.sections.values() for i in s.settings() for name in i.env_names}
    assert len(names) == len(set(names))
    tls = {f"MOONPOOL_TLS_{word}" for word in ("CERT", "KEY", "CA", "MUTUAL")}
    words = ("TOKEN", "MASTER", "TENANTS", "TRACING", "HOST_ID")
    everywhere = {f"MOONPOOL_{word}" for word in words}
    assert everywhere | tls == shared - set(names)


def test_the_default_folder_is_this_users() -> None:
    assert str(NodeConfig().directory).startswith("/dev/shm/moonpool-")
    assert NodeConfig(dir="/tmp/x").directory == Path("/tmp/x")


def test_a_relative_folder_is_told_to_others_as_an_absolute_one() -> None:
    assert NodeConfig(dir="x").directory == Path.cwd() / "x"


def test_a_schema_of_one_section_knows_only_that() -> None:
    with pytest.raises(BadConfig, match="unknown environment variable"):
        Schema(TransferConfig).load(TransferConfig, env={"MOONPOOL_NODE_ROWS": "1"})
